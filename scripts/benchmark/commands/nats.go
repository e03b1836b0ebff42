package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// subject is what all subscribers listen to.
const subject = "command"

// runNATS is the program of a NATS server; its one order tells the address.
func runNATS(_ context.Context, _ []string) error {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, MaxConn: 20_000})
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server does not become ready")
	}
	return obey(os.Stdin, os.Stdout, map[string]func(string) (any, error){
		"address": func(string) (any, error) { return s.Addr().String(), nil },
	})
}

// natsSite is a NATS server with its subscribers.
type natsSite struct {
	server      *child
	subscribers *child
	requester   *requester
}

func openNATS(ctx context.Context, cfg Config) (_ *natsSite, err error) {
	n := &natsSite{}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.server, err = start(ctx, cfg.Program, "part", "nats"); err != nil {
		return nil, err
	}
	var addr string
	if err := n.server.order("address", &addr); err != nil {
		return nil, err
	}
	n.subscribers, err = start(ctx, cfg.Program, "part", "subscribers", "-address", addr, "-subscribers", strconv.Itoa(cfg.Agents))
	if err != nil {
		return nil, err
	}
	err = poll(ctx, time.Minute, func() (bool, error) {
		var t Tally
		err := n.subscribers.order("tally", &t)
		return t.Registered == int64(cfg.Agents), err
	})
	if err != nil {
		return nil, fmt.Errorf("NATS subscribers: %w", err)
	}
	n.requester, err = newRequester(addr, cfg.Agents)
	return n, err
}

func (n *natsSite) cpu() (server, load time.Duration, err error) {
	return cpuOf(n.server, n.subscribers)
}

func (n *natsSite) close() {
	if n.requester != nil {
		n.requester.nc.Close()
	}
	for _, c := range []*child{n.subscribers, n.server} {
		if c != nil {
			c.stop()
		}
	}
}

// requester asks all subscribers at once.
type requester struct {
	nc    *nats.Conn
	inbox string
	sub   *nats.Subscription
	got   atomic.Int64
	want  int64
	all   chan struct{} // cap 1
}

func newRequester(addr string, subscribers int) (*requester, error) {
	nc, err := nats.Connect("nats://" + addr)
	if err != nil {
		return nil, err
	}
	r := &requester{nc: nc, inbox: nats.NewInbox(), want: int64(subscribers), all: make(chan struct{}, 1)}
	r.sub, err = nc.Subscribe(r.inbox, func(*nats.Msg) {
		if r.got.Add(1) == r.want {
			r.all <- struct{}{}
		}
	})
	if err == nil {
		err = errors.Join(r.sub.SetPendingLimits(-1, -1), nc.Flush())
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return r, nil
}

// ask returns when the last reply has come.
func (r *requester) ask(ctx context.Context, body []byte) error {
	r.got.Store(0)
	if err := r.nc.PublishRequest(subject, r.inbox, body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, longWait)
	defer cancel()
	select {
	case <-r.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("NATS: %d of %d replies: %w", r.got.Load(), r.want, context.Cause(ctx))
	}
}
