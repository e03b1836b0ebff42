package commands

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// site is one coordinator with its agents.
type site struct {
	cfg   Config
	kind  kind
	curve bool

	data    string
	agents  string // where agents connect, HOST:PORT
	settler string // of a variant: asks it to give memory back
	api     *client
	coord   *child
	fleet   *child
	size    int // of the fleet
	keys    keys
}

// kind says which program the coordinator is.
type kind int

const (
	durable  kind = iota // `muster up`, as it is
	inMemory             // the same with the store switched off
	settling             // the same with its file, and gives memory back when asked to
)

// open starts a coordinator in a data folder of its own.
func open(ctx context.Context, cfg Config, k kind, curve bool) (_ *site, err error) {
	s := &site{cfg: cfg, kind: k, curve: curve}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.data, err = os.MkdirTemp(cfg.Dir, "bench-"); err != nil {
		return s, err
	}
	if s.curve {
		if s.keys, err = makeKeys(ctx, s.data, cfg.Agents); err != nil {
			return s, err
		}
	}
	ports, err := freePorts(3)
	if err != nil {
		return s, err
	}
	s.agents, s.settler, s.api = ports[0], ports[2], newClient(ports[1])
	return s, s.start(ctx)
}

// start starts the coordinator and waits until it serves. It is also the start
// after a crash.
func (s *site) start(ctx context.Context) (err error) {
	if s.coord, err = start(ctx, s.argv()...); err != nil {
		return err
	}
	return poll(ctx, time.Minute, func() (bool, error) {
		resp, err := s.api.http.Get(s.api.url + "/readyz")
		if err != nil {
			return false, nil // not yet
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, s.api.readToken(s.data)
	})
}

func (s *site) argv() []string {
	var argv []string
	addr := s.api.url[len("http://"):]
	if s.kind == durable && s.cfg.Profile == "" {
		argv = []string{s.cfg.Muster, "up", "--data", s.data, "--listen-agents", "tcp://" + s.agents, "--listen-http", addr, "--log", "warn"}
	} else {
		argv = s.variant(addr)
	}
	if s.curve {
		argv = append(argv, "--curve")
	}
	return argv
}

func (s *site) variant(listenHTTP string) []string {
	argv := []string{s.cfg.Program, "part", "coordinator", "-data", s.data, "-listen-agents", s.agents, "-listen-http", listenHTTP, "-settle", s.settler}
	if s.kind != inMemory {
		argv = append(argv, "-durable")
	}
	if s.kind == durable && s.cfg.Profile != "" {
		argv = append(argv, "-cpuprofile", filepath.Join(s.cfg.Profile, time.Now().Format("150405.000")+".prof"))
	}
	return argv
}

// breed says what agents are made of.
type breed int

const (
	lean      breed = iota // by hand: they answer commands, and cost little
	onDealers              // of what real agents have: they come back after a broken link
)

// gather starts n agents and waits until all are registered.
func (s *site) gather(ctx context.Context, n int, b breed) (err error) {
	s.size = n
	argv := []string{s.cfg.Program, "part", "agents", "-coordinator", s.agents, "-agents", strconv.Itoa(n)}
	if b == onDealers {
		argv = append(argv, "-dealers")
	}
	if s.curve {
		argv = append(argv, "-keys", s.keys.file, "-server-key", s.keys.server)
	}
	if s.fleet, err = start(ctx, argv...); err != nil {
		return err
	}
	return s.awaitAll(ctx, int64(n), 3*time.Minute)
}

// awaitAll waits until every agent is registered, and so many registrations were
// made since the fleet began.
func (s *site) awaitAll(ctx context.Context, registrations int64, limit time.Duration) error {
	var t Tally
	err := poll(ctx, limit, func() (bool, error) {
		err := s.fleet.order("tally", &t)
		return t.Registered == int64(s.size) && t.Registrations >= registrations, err
	})
	if err != nil {
		return fmt.Errorf("%d of %d agents registered: %w", t.Registered, s.size, err)
	}
	return nil
}

func (s *site) tally() (t Tally, err error) {
	err = s.fleet.order("tally", &t)
	return t, err
}

// beat makes the fleet beat so many times a second.
func (s *site) beat(perSecond int) error {
	return s.fleet.order("beat "+(time.Duration(s.size)*time.Second/time.Duration(perSecond)).String(), nil)
}

// settle makes a variant give back what memory it does not need.
func (s *site) settle(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.settler+"/settle", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// cpu is what the coordinator and its agents have used.
func (s *site) cpu() (server, load time.Duration, err error) { return cpuOf(s.coord, s.fleet) }

func cpuOf(a, b *child) (server, load time.Duration, err error) {
	if server, err = a.cpu(); err == nil {
		load, err = b.cpu()
	}
	return server, load, err
}

func (s *site) close() {
	for _, c := range []*child{s.fleet, s.coord} {
		if c != nil {
			c.stop()
		}
	}
	if s.data != "" {
		os.RemoveAll(s.data)
	}
}

// poll asks done every few milliseconds.
func poll(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(errors.New("it takes too long"), context.Cause(ctx))
		}
	}
}

// freePorts finds addresses that nobody listens on.
func freePorts(n int) (addrs []string, err error) {
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs, nil
}
