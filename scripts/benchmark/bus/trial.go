package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
	"github.com/musterhq/muster/scripts/benchmark/load"
	"github.com/musterhq/muster/scripts/benchmark/server"
)

// sample is what one run of one server showed.
type sample struct {
	rate float64       // round trips a second; 0: stalled
	cpu  time.Duration // of the server, for a round trip
	load time.Duration // CPU of this process, for a round trip
}

// trial is one start of one server with its peers.
type trial struct {
	cfg     Config
	c       contestant
	peers   int
	process *server.Process
	fleet   *load.Fleet
	idle    float64 // bytes of resident memory per peer that has nothing to do
}

// begin starts the server and connects the peers.
func begin(ctx context.Context, cfg Config, c contestant, peers int) (_ *trial, err error) {
	t := &trial{cfg: cfg, c: c, peers: peers}
	if t.process, err = server.Start(ctx, c.argv...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.end())
		}
	}()
	before, err := t.settled()
	if err != nil {
		return nil, err
	}
	security, err := c.security(t.process)
	if err != nil {
		return nil, err
	}
	message, err := hundredBytes()
	if err != nil {
		return nil, err
	}
	t.fleet, err = load.Connect(ctx, load.Config{Addr: t.process.Addr, Peers: peers, Security: security, Message: message})
	if err != nil {
		return nil, err
	}
	if err := t.run(ctx, 1, func() error { return pause(ctx, cfg.Warm) }); err != nil {
		return nil, err
	}
	after, err := t.settled()
	t.idle = float64(after-before) / float64(peers)
	return t, err
}

func (t *trial) end() error {
	if t.fleet != nil {
		t.fleet.Close()
	}
	return t.process.Stop()
}

// hundredBytes is a message with a body of 100 bytes.
func hundredBytes() (load.Message, error) {
	m := &musterv1.OutputChunk{CommandId: "01HZX3Q4N8F0V9C2T7R5K1M6AB", Data: make([]byte, 70)}
	return message(m, 100)
}

func message(m proto.Message, size int) (load.Message, error) {
	body, err := proto.Marshal(m)
	if err == nil && len(body) != size {
		err = fmt.Errorf("a body of %d bytes, want %d", len(body), size)
	}
	return load.Message{[]byte(proto.MessageName(m)), nil, body}, err
}

// settled is the server's memory when it has nothing to do.
func (t *trial) settled() (int64, error) {
	if err := t.process.Order("settle"); err != nil {
		return 0, err
	}
	return t.process.Memory()
}

// run loads the server while f runs.
func (t *trial) run(ctx context.Context, window int, f func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- t.fleet.Run(ctx, window) }()
	err := f()
	cancel()
	return errors.Join(err, <-ran)
}

// measure measures one window.
func (t *trial) measure(ctx context.Context, window int) (s sample, err error) {
	err = t.run(ctx, window, func() error {
		if err := pause(ctx, t.cfg.Warm); err != nil {
			return err
		}
		if t.cfg.Profile == "" {
			s, err = t.watch(ctx)
			return err
		}
		file := filepath.Join(t.cfg.Profile, fmt.Sprintf("%s-%d-%d.pprof", t.c.short, t.peers, window))
		if err := t.process.Order("profile " + file); err != nil {
			return err
		}
		if s, err = t.watch(ctx); err != nil {
			return err
		}
		return t.process.Order("profile-end")
	})
	return s, err
}

// watch counts for a time. A server is stalled when nothing came back in the last
// half of it.
func (t *trial) watch(ctx context.Context) (sample, error) {
	start, err := t.clocks()
	if err != nil {
		return sample{}, err
	}
	if err := pause(ctx, t.cfg.Time/2); err != nil {
		return sample{}, err
	}
	half := t.fleet.Answers()
	if err := pause(ctx, t.cfg.Time/2); err != nil {
		return sample{}, err
	}
	end, err := t.clocks()
	n := end.answers - start.answers
	if err != nil || end.answers == half {
		return sample{}, err
	}
	return sample{
		rate: float64(n) / end.at.Sub(start.at).Seconds(),
		cpu:  (end.server - start.server) / time.Duration(n),
		load: (end.load - start.load) / time.Duration(n),
	}, nil
}

// clocks are what a sample is the difference of.
type clocks struct {
	at           time.Time
	server, load time.Duration // CPU
	answers      int64
}

func (t *trial) clocks() (c clocks, err error) {
	c.at, c.answers = time.Now(), t.fleet.Answers()
	if c.load, err = server.CPU(os.Getpid()); err != nil {
		return c, err
	}
	c.server, err = t.process.CPU()
	return c, err
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
