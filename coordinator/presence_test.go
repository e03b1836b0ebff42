package coordinator

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestRegistrationIsChecked(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for name, c := range map[string]struct {
			change func(*musterv1.Register)
			field  string
		}{
			"no id":     {func(m *musterv1.Register) { m.AgentId = "" }, "agent_id"},
			"path":      {func(m *musterv1.Register) { m.AgentId = "a/../b" }, "agent_id"},
			"control":   {func(m *musterv1.Register) { m.AgentId = "a\n\x1b[2J" }, "agent_id"},
			"long":      {func(m *musterv1.Register) { m.AgentId = string(make([]byte, 129)) }, "agent_id"},
			"no run id": {func(m *musterv1.Register) { m.RunId = "" }, "run_id"},
			"tag":       {func(m *musterv1.Register) { m.Tags = map[string]string{"": "x"} }, `tags[""]`},
		} {
			p := r.peer("ok")
			c.change(p.reg)
			p.join()
			if n := p.lastNack(); n.Reason != musterv1.Nack_INVALID || n.Field != c.field {
				t.Errorf("%s: got %v", name, n)
			}
			p.leave()
		}
		if n := r.c.fleet.size(); n != 0 {
			t.Errorf("%d agents are known after refused registrations", n)
		}
	})
}

func TestFirstMessageMustBeRegister(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		p := r.peer("")
		p.join() // its Register is refused
		defer p.leave()
		p.say(&musterv1.Heartbeat{SequenceNum: 2})
		if n := p.lastNack(); n.Reason != musterv1.Nack_NOT_REGISTERED {
			t.Errorf("got %v", n)
		}
		p.say(&musterv1.Target{CommandId: "x", AgentId: "a", State: musterv1.Target_SUCCEEDED})
		if n := p.lastNack(); n.Reason != musterv1.Nack_NOT_REGISTERED {
			t.Errorf("got %v", n)
		}
		link := p.current()
		time.Sleep(unregistered + time.Second)
		select {
		case <-link.Done():
		default:
			t.Error("a link that does not register is kept for ever")
		}
	})
}

func TestHeartbeatGapAsksForFullState(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a")
		a.silent.Store(true)
		a.join()
		defer a.leave()
		for _, c := range []struct {
			seq  uint64
			full bool
		}{{2, false}, {3, false}, {5, true}, {5, true}, {0, true}, {1, false}} {
			a.say(&musterv1.Heartbeat{SequenceNum: c.seq})
			got := a.acks[len(a.acks)-1]
			if full := got.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0; full != c.full || got.SequenceNum != c.seq {
				t.Errorf("sequence number %d: got %v, want full state %v", c.seq, got, c.full)
			}
		}
	})
}

func TestSilenceMakesSuspectThenOffline(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		time.Sleep(10 * time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		a.silent.Store(true) // the link stays
		a.mute.Store(true)
		time.Sleep(30 * time.Second)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		time.Sleep(15 * time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		a.beat()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		time.Sleep(5*time.Minute - time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(2 * time.Second)
		seen := r.wantStatus("a", musterv1.Agent_OFFLINE).LastSeen.AsTime()
		if silent := time.Since(seen); silent < 5*time.Minute || silent > 5*time.Minute+2*time.Second {
			t.Errorf("last seen %s ago", silent)
		}
	})
}

func TestBrokenLinkIsSuspectAtOnce(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		a.leave()
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(5*time.Minute + time.Second)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
	})
}

// Two live links register as one agent, with one ZeroMQ identity: the newer one
// has it, the older is closed, and a command reaches exactly one of them.
func TestC017TwoLiveLinksOfOneAgent(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		old := a.current()
		b := r.peer("a").join()
		defer b.leave()
		cmd := r.submit(to("a"))
		a.wantGot(0)
		b.wantGot(1)
		select {
		case <-old.Done():
		case <-time.After(2 * time.Second):
			t.Error("the older link is still there")
		}
		a.leave() // before it comes back; its late close takes nothing offline
		r.wantStatus("a", musterv1.Agent_ONLINE)
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		b.wantAcked(cmd.Id)
	})
}

// The old link is dead and nobody has noticed: it takes nothing and says
// nothing. The new one has the agent at once, and the command that went into
// the old one is sent again on it.
func TestC018ReconnectBeforeTheOldLinkIsNoticedDead(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		raw, err := r.net.Dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		frozen := &frozenLink{Conn: raw}
		mux := bus.NewMux()
		mux.Up = func(l *bus.Peer) { l.Send(r.peer("a").reg) }
		bus.Handle(mux, func(*bus.Peer, *musterv1.Envelope, *musterv1.Registered) error { frozen.freeze(); return nil })
		d := bus.NewDealer(bus.Config{}, mux, []string{"mem://"}, bus.Null(), func(context.Context, string) (net.Conn, error) {
			if frozen.used.Swap(true) {
				return nil, net.ErrClosed // it never comes back
			}
			return frozen, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		defer func() { cancel(); frozen.Close(); <-done }()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		cmd := r.submit(to("a"))
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)

		b := r.peer("a").join()
		defer b.leave()
		b.wantGot(1)
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		time.Sleep(2 * time.Second)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		r.wantState(cmd.Id, "a", musterv1.Target_SUCCEEDED)
		if _, err := raw.Write([]byte("x")); err == nil {
			t.Error("the old link is still open")
		}
	})
}

// frozenLink is a connection whose reads, once frozen, give nothing until it is
// closed.
type frozenLink struct {
	net.Conn
	used, cold atomic.Bool
	closed     chan struct{}
	once       sync.Once
}

func (f *frozenLink) freeze() { f.cold.Store(true) }

func (f *frozenLink) Read(b []byte) (int, error) {
	if !f.cold.Load() {
		return f.Conn.Read(b)
	}
	<-f.gone()
	return 0, net.ErrClosed
}

func (f *frozenLink) gone() chan struct{} {
	f.once.Do(func() { f.closed = make(chan struct{}) })
	return f.closed
}

func (f *frozenLink) Close() error {
	select {
	case <-f.gone():
	default:
		close(f.gone())
	}
	return f.Conn.Close()
}

func TestC032RestartAloneMarksNobodyOnlineOrOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a, b := r.peer("a").join(), r.peer("b").join()
		time.Sleep(time.Hour)
		b.leave()
		seen := r.wantStatus("b", musterv1.Agent_SUSPECT).LastSeen.AsTime()
		time.Sleep(2 * time.Minute)
		a.leave()
		r.stop()
		time.Sleep(time.Hour)

		r.start()
		defer func() { r.stop(); r.store.Close() }()
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		if got := r.wantStatus("b", musterv1.Agent_SUSPECT).LastSeen.AsTime(); !got.Equal(seen) {
			t.Errorf("last seen %s, want that from before the restart, %s", got, seen)
		}
		time.Sleep(4 * time.Minute)
		a = r.peer("a").join()
		defer a.leave()
		time.Sleep(2 * time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		r.wantStatus("b", musterv1.Agent_OFFLINE)
	})
}

func TestPauseOfTheProcessGivesAGrace(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a")
		a.silent.Store(true)
		a.join()
		defer a.leave()
		a.mute.Store(true)
		time.Sleep(40 * time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(4 * time.Minute)
		r.c.pulse.mu.Lock()
		r.c.pulse.wall = r.c.pulse.wall.Add(-time.Hour) // as after SIGCONT
		r.c.pulse.mu.Unlock()
		time.Sleep(4 * time.Minute)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(2 * time.Minute)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
	})
}

// counting counts the commits that reach a store.
type counting struct {
	store.Store
	n atomic.Int64
}

func (s *counting) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	s.n.Add(1)
	return s.Store.Commit(ctx, b)
}

func TestBeatsCostNoCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &counting{Store: r.store}
		r.store = s
		r.start()
		a := r.peer("a").join()
		before := s.n.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.n.Load() - before; n != 0 || len(a.acks) < 300 {
			t.Errorf("%d commits by %d beats", n, len(a.acks))
		}
		a.leave()
		r.stop()
		r.store.Close()
	})
}

// An agent that comes back as it was costs no write.
func TestUnchangedRegistrationCostsNoCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.peer("a").join().leave()
		r.stop()
		s := &counting{Store: r.store}
		r.store = s
		r.start()
		a := r.peer("a").join()
		defer func() { a.leave(); r.stop(); r.store.Close() }()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		if n := s.n.Load(); n != 1 { // the transition to ONLINE writes last_seen
			t.Errorf("%d commits", n)
		}
	})
}

// Without Run nothing that Serve started may stay: a link's end is its own.
func TestLinksEndWithServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c, err := New(t.Context(), r.store, r.cfg)
		if err != nil {
			t.Fatal(err)
		}
		mux := bus.NewMux()
		c.Register(mux)
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return bus.NewRouter(bus.Config{}, mux).Serve(ctx, r.net, bus.Null()) })
		g.Go(func() error { return c.Run(ctx) })
		r.c = c
		ps := []*peer{r.peer("a").join(), r.peer("b").join(), r.peer("").join()}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		for _, p := range ps {
			p.leave()
		}
		r.store.Close()
	})
}

func TestIDsStaySortedInWhateverOrderAgentsCome(t *testing.T) {
	f := newFleet(time.Now(), time.Now)
	want := []string{}
	for _, id := range []string{"b", "d", "f", "a", "c", "z", "e", "zz"} {
		f.ensureLocked(id)
		want = append(want, id)
		slices.Sort(want)
		if id == "c" || id == "e" {
			continue // two come before anybody asks
		}
		if got := f.ids(); !slices.Equal(got, want) {
			t.Errorf("after %s: %v", id, got)
		}
	}
}
