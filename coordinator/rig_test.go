package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rig is a coordinator on an in-memory network and, unless told otherwise, an
// in-memory store, inside a synctest bubble.
type rig struct {
	t     *testing.T
	net   *bustest.Net
	store store.Store
	cfg   Config
	link  bus.Config // of the router, but for its log
	c     *Coordinator
	cmds  *commandService
	stop  func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, net: bustest.NewNet(), store: store.NewMem(Spaces...)}
	r.cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	return r
}

// start runs the coordinator; after stop it may be started again on the same
// store.
func (r *rig) start() {
	r.t.Helper()
	c, err := New(r.t.Context(), r.store, r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	mux := bus.NewMux()
	c.Register(mux)
	link := r.link
	link.Log = r.cfg.Log
	router := bus.NewRouter(link, mux)
	ctx, cancel := context.WithCancel(r.t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return router.Serve(ctx, r.net, bus.Null()) })
	g.Go(func() error { return c.Run(ctx) })
	r.c, r.cmds = c, &commandService{c: c, quit: ctx.Done()}
	r.stop = func() {
		r.t.Helper()
		cancel()
		if err := g.Wait(); err != nil {
			r.t.Error(err)
		}
		r.net = bustest.NewNet()
	}
	synctest.Wait()
}

func (r *rig) submit(cmd *musterv1.Command) *musterv1.Command {
	r.t.Helper()
	cmd, err := r.cmds.CreateCommand(r.t.Context(), &musterv1.CreateCommandRequest{Command: cmd})
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	return cmd
}

// to is a command to these agents.
func to(agents ...string) *musterv1.Command {
	return &musterv1.Command{Type: "exec", Input: []byte(`{"argv":["true"]}`), Target: &musterv1.TargetSelector{Agents: agents}}
}

func (r *rig) target(id, agent string) *musterv1.Target {
	r.t.Helper()
	synctest.Wait()
	t, err := r.cmds.GetTarget(r.t.Context(), &musterv1.GetTargetRequest{CommandId: id, AgentId: agent})
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

func (r *rig) wantState(id, agent string, want musterv1.Target_State) *musterv1.Target {
	r.t.Helper()
	t := r.target(id, agent)
	if t.State != want {
		r.t.Fatalf("command %s on %s is %s, want %s", id, agent, t.State, want)
	}
	return t
}

func (r *rig) command(id string) *musterv1.Command {
	r.t.Helper()
	synctest.Wait()
	cmd, err := r.cmds.GetCommand(r.t.Context(), &musterv1.GetCommandRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return cmd
}

func (r *rig) wantStatus(id string, want musterv1.Agent_Status) *musterv1.Agent {
	r.t.Helper()
	synctest.Wait()
	a := r.c.fleet.view(id)
	if a.GetStatus() != want {
		r.t.Fatalf("agent %s is %s, want %s", id, a.GetStatus(), want)
	}
	return a
}

// told counts the events so far that match.
func (r *rig) told(match func(*musterv1.Event) bool) (n int) {
	synctest.Wait()
	r.c.feed.mu.Lock()
	defer r.c.feed.mu.Unlock()
	for _, e := range r.c.feed.ring {
		if e != nil && match(e) {
			n++
		}
	}
	return n
}

// peer is an agent played by the test: it registers and beats, and the test
// says the rest.
type peer struct {
	r      *rig
	reg    *musterv1.Register
	silent atomic.Bool    // does not beat
	more   func(*bus.Mux) // callbacks of a test's own
	mute   atomic.Bool    // nor does it register on a new link
	deaf   atomic.Bool    // nor does it answer a Probe

	mu      sync.Mutex
	link    *bus.Peer
	seq     uint64
	got     []*musterv1.Command
	acked   []string
	nacks   []*musterv1.Nack
	acks    []*musterv1.HeartbeatAck
	bye     []*musterv1.Goodbye
	let     []*musterv1.Registered
	cancels []string
	leave   func()
}

func (r *rig) peer(id string) *peer {
	return &peer{r: r, reg: &musterv1.Register{AgentId: id, RunId: "run-" + id, Journal: &musterv1.JournalPosition{Epoch: "e1", Seq: 1}}}
}

// join connects and registers, and waits until that is done.
func (p *peer) join() *peer {
	p.r.t.Helper()
	mux := bus.NewMux()
	if p.more != nil {
		p.more(mux)
	}
	ctx, cancel := context.WithCancel(p.r.t.Context())
	mux.Up = func(l *bus.Peer) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.link = l; p.mute.Load() {
			return
		}
		p.seq++
		p.reg.SequenceNum = p.seq
		l.Send(p.reg)
	}
	beats := time.NewTicker(10 * time.Second)
	bus.Handle(mux, func(l *bus.Peer, _ *musterv1.Envelope, m *musterv1.Registered) error {
		l.Promote()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.let = append(p.let, m)
		return nil
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Command) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got = append(p.got, m)
		return nil
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.TargetAck) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acked = append(p.acked, m.CommandIds...)
		return nil
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Nack) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.nacks = append(p.nacks, m)
		return nil
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.HeartbeatAck) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acks = append(p.acks, m)
		return nil
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Goodbye) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.bye = append(p.bye, m)
		return nil
	})
	bus.Handle(mux, func(l *bus.Peer, env *musterv1.Envelope, _ *musterv1.Probe) error {
		if p.deaf.Load() {
			return nil
		}
		return l.Reply(env, &musterv1.ProbeAck{})
	})
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Cancel) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cancels = append(p.cancels, m.CommandId)
		return nil
	})
	d := bus.NewDealer(bus.Config{Log: p.r.cfg.Log}, mux, []string{"mem://"}, bus.Null(), p.r.net.Dial)
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(ctx) })
	wg.Go(func() {
		for {
			select {
			case <-beats.C:
				if !p.silent.Load() {
					p.beat()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	p.leave = func() { cancel(); wg.Wait(); beats.Stop(); synctest.Wait() }
	synctest.Wait()
	return p
}

func (p *peer) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	p.link.Send(&musterv1.Heartbeat{SequenceNum: p.seq})
}

func (p *peer) current() *bus.Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link
}

func (p *peer) say(m proto.Message) {
	p.r.t.Helper()
	if err := p.current().Send(m); err != nil {
		p.r.t.Error(err)
	}
	synctest.Wait()
}

// report says that a command is in a state.
func (p *peer) report(id string, s musterv1.Target_State) {
	p.say(&musterv1.Target{CommandId: id, AgentId: p.reg.AgentId, State: s})
}

func (p *peer) commands() []*musterv1.Command {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*musterv1.Command(nil), p.got...)
}

func (p *peer) wantGot(n int) {
	p.r.t.Helper()
	if got := p.commands(); len(got) != n {
		p.r.t.Fatalf("agent %s got %d commands, want %d", p.reg.AgentId, len(got), n)
	}
}

func (p *peer) wantAcked(ids ...string) {
	p.r.t.Helper()
	time.Sleep(2 * ackDelay)
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.acked) != len(ids) {
		p.r.t.Fatalf("acknowledged: %v, want %v", p.acked, ids)
	}
	for i := range ids {
		if p.acked[i] != ids[i] {
			p.r.t.Fatalf("acknowledged: %v, want %v", p.acked, ids)
		}
	}
}

func (p *peer) lastNack() *musterv1.Nack {
	p.r.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.nacks) == 0 {
		p.r.t.Fatal("no Nack came")
	}
	return p.nacks[len(p.nacks)-1]
}

func lasting(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// fleetTest runs body in a bubble with a running coordinator, which must end
// without leaving a goroutine behind.
func fleetTest(t *testing.T, body func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		body(t, r)
		r.stop()
		r.store.Close()
	})
}

func (p *peer) wantCancels(n int) {
	p.r.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.cancels) != n {
		p.r.t.Fatalf("told %d times to cancel, want %d", len(p.cancels), n)
	}
}
