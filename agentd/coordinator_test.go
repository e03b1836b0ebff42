package agentd

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fakeCoordinator is the other side: a real router that registers whoever
// comes and notes what it is told.
type fakeCoordinator struct {
	mu        sync.Mutex
	silent    bool // does not ack
	refuse    func(*musterv1.Target) bool
	interval  time.Duration
	peer      *bus.Peer
	registers []*musterv1.Register
	targets   []*musterv1.Target
	output    map[string][]byte // by command and stream
	chunks    int
	ends      int // final Targets, repeats too
	busy      []string
	nacks     []*musterv1.Nack
	goodbyes  int
	deaf      bool                     // registers nobody
	statuses  []*musterv1.ConfigStatus // told by ConfigFeedback
	fetches   []*musterv1.FetchConfig
	serveFile func(*musterv1.FetchConfig) *musterv1.ConfigContent // nil: nothing comes
	changed   chan struct{}                                       // closed and replaced with each message
}

// serve runs a coordinator on ln until the test ends.
func serve(t *testing.T, ln net.Listener) *fakeCoordinator {
	t.Helper()
	c := &fakeCoordinator{output: map[string][]byte{}, changed: make(chan struct{}), interval: 10 * time.Second}
	mux := bus.NewMux()
	mux.Down = func(p *bus.Peer, _ error) {
		c.note(func() {
			if c.peer == p {
				c.peer = nil
			}
		})
	}
	handle(mux, c, func(p *bus.Peer, m *musterv1.Register) {
		if c.deaf {
			p.Close(nil)
			return
		}
		c.peer = p
		c.registers = append(c.registers, m)
		p.Promote()
		_ = p.Send(&musterv1.Registered{SessionId: "s", Capabilities: remembers, HeartbeatInterval: durationpb.New(c.interval)})
	})
	handle(mux, c, func(p *bus.Peer, m *musterv1.Heartbeat) {
		_ = p.Send(&musterv1.HeartbeatAck{SequenceNum: m.SequenceNum})
	})
	bus.Handle(mux, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Target) (err error) {
		c.note(func() {
			c.targets = append(c.targets, m)
			if m.State >= musterv1.Target_SUCCEEDED {
				c.ends++
			}
			switch {
			case m.State < musterv1.Target_SUCCEEDED, c.silent:
			case c.refuse != nil && c.refuse(m):
				err = &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "result", Detail: "nonsense"}
			default:
				_ = p.Send(&musterv1.TargetAck{CommandIds: []string{m.CommandId}})
			}
		})
		return err
	})
	handle(mux, c, func(_ *bus.Peer, m *musterv1.OutputChunk) {
		key := fmt.Sprint(m.CommandId, m.Stream)
		if m.Offset == 0 {
			c.output[key] = nil
		}
		end := int(m.Offset) + len(m.Data)
		if int(m.Offset) != len(c.output[key]) || len(m.Data) == 0 || (end-1)/chunkSize != int(m.Offset)/chunkSize {
			t.Errorf("a chunk of %s at %d to %d; have %d", key, m.Offset, end, len(c.output[key]))
		}
		c.output[key] = append(c.output[key], m.Data...)
		c.chunks++
	})
	handle(mux, c, func(_ *bus.Peer, m *musterv1.Busy) { c.busy = append(c.busy, m.CommandId) })
	handle(mux, c, func(_ *bus.Peer, m *musterv1.Nack) { c.nacks = append(c.nacks, m) })
	handle(mux, c, func(*bus.Peer, *musterv1.Goodbye) { c.goodbyes++ })
	handle(mux, c, func(_ *bus.Peer, m *musterv1.ConfigFeedback) { c.statuses = append(c.statuses, m.Configs...) })
	handle(mux, c, func(p *bus.Peer, m *musterv1.FetchConfig) {
		c.fetches = append(c.fetches, m)
		if c.serveFile != nil {
			_ = p.Send(c.serveFile(m))
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bus.NewRouter(bus.Config{}, mux).Serve(ctx, ln, bus.Null()) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func handle[M interface {
	*E
	proto.Message
}, E any](mux *bus.Mux, c *fakeCoordinator, fn func(*bus.Peer, M)) {
	bus.Handle(mux, func(p *bus.Peer, _ *musterv1.Envelope, m M) error {
		c.note(func() { fn(p, m) })
		return nil
	})
}

func (c *fakeCoordinator) note(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
	close(c.changed)
	c.changed = make(chan struct{})
}

// until waits for something to be so.
func (c *fakeCoordinator) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	for {
		c.mu.Lock()
		ok, changed := is(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Fatalf("waited in vain for %s; busy %v, nacks %v, targets %.4000s", what, c.busy, c.nacks, fmt.Sprint(c.targets))
		}
	}
}

func (c *fakeCoordinator) send(t *testing.T, cmds ...*musterv1.Command) {
	t.Helper()
	c.until(t, "an agent", func() bool { return c.peer != nil })
	c.mu.Lock()
	p := c.peer
	c.mu.Unlock()
	for _, m := range cmds {
		if err := p.Send(m); err != nil {
			t.Fatal(err)
		}
	}
}

// all returns the Targets that came for a command. The caller holds the lock.
func (c *fakeCoordinator) all(id string) (ts []*musterv1.Target) {
	for _, m := range c.targets {
		if m.CommandId == id {
			ts = append(ts, m)
		}
	}
	return ts
}

// end waits for the final Target of a command.
func (c *fakeCoordinator) end(t *testing.T, id string) (final *musterv1.Target) {
	t.Helper()
	c.until(t, "the end of "+id, func() bool {
		i := slices.IndexFunc(c.targets, func(m *musterv1.Target) bool {
			return m.CommandId == id && m.State >= musterv1.Target_SUCCEEDED
		})
		if i < 0 {
			return false
		}
		final = c.targets[i]
		return true
	})
	return final
}

// told counts how often the end of a command was told.
func (c *fakeCoordinator) told(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finals(id)
}

// out is what came of a stream of a command.
func (c *fakeCoordinator) out(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.output[key])
}

// registered is the first Register that came.
func (c *fakeCoordinator) registered(t *testing.T) (r *musterv1.Register) {
	t.Helper()
	c.until(t, "a Register", func() bool {
		if len(c.registers) == 0 {
			return false
		}
		r = c.registers[0]
		return true
	})
	return r
}

// finals is told for who holds the lock.
func (c *fakeCoordinator) finals(id string) (n int) {
	for _, m := range c.all(id) {
		if m.State >= musterv1.Target_SUCCEEDED {
			n++
		}
	}
	return n
}

func (c *fakeCoordinator) waitFor(t *testing.T, id string, s musterv1.Target_State) {
	t.Helper()
	c.until(t, fmt.Sprintf("%s to be %v", id, s), func() bool {
		return slices.ContainsFunc(c.all(id), func(m *musterv1.Target) bool { return m.State == s })
	})
}

func (c *fakeCoordinator) setSilent(silent bool) {
	c.note(func() { c.silent = silent })
}

// cut ends the link and waits until it is gone.
func (c *fakeCoordinator) cut(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	p := c.peer
	c.mu.Unlock()
	p.Close(nil)
	c.until(t, "the end of the link", func() bool { return c.peer != p })
}

// running is an agent that runs in this process.
type running struct {
	*Agent
	stop func() // and wait; may be called twice
}

// run starts an agent that dials net.
func runAgent(t *testing.T, n *bustest.Net, cfg Config, prepare ...func(*Agent)) *running {
	t.Helper()
	cfg.Log = testLog(t)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range prepare {
		fn(a)
	}
	mux := bus.NewMux()
	a.Register(mux)
	d := bus.NewDealer(bus.Config{}, mux, []string{"mem"}, bus.Null(), n.Dial)
	a.Bind(d)
	ctx, cancel := context.WithCancel(context.Background())
	linkCtx, hangUp := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { defer hangUp(); _ = a.Run(ctx) })
	wg.Go(func() { _ = d.Run(linkCtx) })
	stop := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &running{a, stop}
}

// ping and command make commands.
func ping(id string) *musterv1.Command {
	return &musterv1.Command{Id: id, Type: "ping", ExpiresIn: durationpb.New(time.Hour), Timeout: durationpb.New(time.Minute)}
}

func shell(id, script string) *musterv1.Command {
	in, _ := json.Marshal(map[string]any{"argv": []string{"/bin/sh", "-c", script}})
	return &musterv1.Command{Id: id, Type: "exec", Input: in, ExpiresIn: durationpb.New(time.Hour), Timeout: durationpb.New(time.Minute)}
}
