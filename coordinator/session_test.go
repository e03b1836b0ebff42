package coordinator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent that is stopped in order is OFFLINE at once, and said to have left,
// also after a restart, until it comes again.
func TestC055OrderlyLeaveIsOfflineAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		a := r.peer("a").join()
		link := a.current()
		a.mute.Store(true)
		a.say(&musterv1.Goodbye{Reason: "the agent stops", Leaving: true})
		if got := r.wantStatus("a", musterv1.Agent_OFFLINE); !got.Left || got.Address != "" {
			t.Errorf("got %v", got)
		}
		<-link.Done()
		a.leave()
		r.stop()
		r.start()
		if got := r.wantStatus("a", musterv1.Agent_OFFLINE); !got.Left {
			t.Errorf("after a restart: %v", got)
		}
		b := r.process("a", "second").join()
		if got := r.wantStatus("a", musterv1.Agent_ONLINE); got.Left {
			t.Errorf("it came again: %v", got)
		}
		b.leave()
		if got := r.wantStatus("a", musterv1.Agent_SUSPECT); got.Left {
			t.Errorf("its link broke: %v", got)
		}
	})
}

// A Goodbye that is not a leave, and a leave on a link that is not the agent's,
// take nobody offline.
func TestGoodbyeAloneTakesNobodyOffline(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		a.say(&musterv1.Goodbye{Reason: "perhaps"})
		r.wantStatus("a", musterv1.Agent_ONLINE)
		b := r.peer("")
		b.join() // its Register is refused
		b.say(&musterv1.Goodbye{Reason: "the agent stops", Leaving: true})
		b.leave()
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

// N17: where it is the rule of the fleet, what was never sent to an agent that
// goes OFFLINE is CANCELLED, and kept in the history. What was sent may run.
func TestCommandsOfOfflineAgentsAreCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.CancelOffline = true
		r.cfg.InFlight = 1
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		a, b := r.peer("a").join(), r.peer("b").join()
		defer b.leave()
		sent, never := r.submit(to("a")), r.submit(to("a", "b"))
		a.wantGot(1)
		a.leave()
		later := r.submit(to("a")) // it is SUSPECT: nothing destructive yet
		r.wantState(later.Id, "a", musterv1.Target_QUEUED)
		time.Sleep(6 * time.Minute)
		for _, id := range []string{never.Id, later.Id} {
			if got := r.wantState(id, "a", musterv1.Target_CANCELLED); got.Reason != "agent offline" {
				t.Errorf("reason %q", got.Reason)
			}
		}
		r.wantState(sent.Id, "a", musterv1.Target_SENT)
		r.wantState(never.Id, "b", musterv1.Target_SENT)
		if got := r.command(later.Id); got.State != musterv1.Command_DONE || got.WhenOffline != musterv1.Command_CANCEL {
			t.Errorf("got %v", got)
		}
		asked := to("a")
		asked.WhenOffline = musterv1.Command_QUEUE
		r.wantState(r.submit(asked).Id, "a", musterv1.Target_CANCELLED)
	})
}

// The rule holds for those who are OFFLINE when it is made, and for one that is
// stopped in order.
func TestOfflineRuleAfterARestartAndALeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		r.peer("a").join().leave()
		b := r.peer("b").join()
		b.leave()
		waits := r.submit(to("a", "b"))
		time.Sleep(6 * time.Minute)
		r.wantState(waits.Id, "a", musterv1.Target_QUEUED)
		r.stop()
		r.cfg.CancelOffline, r.cfg.InFlight = true, 1
		r.start()
		r.wantState(waits.Id, "a", musterv1.Target_CANCELLED)
		r.wantState(waits.Id, "b", musterv1.Target_CANCELLED)
		c := r.peer("c").join()
		r.submit(to("c"))
		second := r.submit(to("c"))
		c.mute.Store(true)
		c.say(&musterv1.Goodbye{Leaving: true})
		r.wantState(second.Id, "c", musterv1.Target_CANCELLED)
		c.leave()
	})
}

// An agent is told how often to beat and how to come back: in a fleet of more
// than 20,000 it beats more rarely (N19, N104).
func TestIntervalAndWindowAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.ReconnectWindow = 7 * time.Second
		r.start()
		a := r.peer("a").join()
		if got := a.let[0]; got.HeartbeatInterval.AsDuration() != 10*time.Second || got.ReconnectWindow.AsDuration() != 7*time.Second || got.SessionId == "" {
			t.Errorf("told %v", got)
		}
		for n, want := range map[int]time.Duration{1: 10 * time.Second, 20_000: 10 * time.Second, 100_000: 50 * time.Second} {
			if got := r.c.interval(n); got != want {
				t.Errorf("%d agents beat every %v, want %v", n, got, want)
			}
		}
		a.leave()
		r.stop()
		r.store.Close()
	})
}

// The session is there exactly as long as the link (N101); the agent stays known.
func TestSessionLivesAsLongAsTheLink(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		if r.c.fleet.linkOf("a") != nil {
			t.Error("a session of an agent that never came")
		}
		a := r.peer("a").join()
		s := r.c.fleet.linkOf("a")
		if s == nil || s.registered().id != "a" {
			t.Fatal("no session of an agent that is connected")
		}
		a.leave()
		if r.c.fleet.linkOf("a") != nil {
			t.Error("the session outlives its link")
		}
		a.join()
		if again := r.c.fleet.linkOf("a"); again == nil || again.id == s.id {
			t.Error("the next link has the session of the one before")
		}
		a.leave()
		r.wantStatus("a", musterv1.Agent_SUSPECT)
	})
}

// An agent that nobody hears any more is OFFLINE although that cannot be stored,
// and its dead link is closed.
func TestC053OfflineAlthoughItCannotBeStored(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a := r.peer("a").join()
		link := a.current()
		a.silent.Store(true)
		a.mute.Store(true)
		s.refuse.Store(agentPrefix)
		time.Sleep(4*time.Minute + 59*time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(10 * time.Second)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
		select {
		case <-link.Done():
		case <-time.After(2 * time.Second):
			t.Error("its link is still open")
		}
		a.leave()
	})
}

// N60: commands go only to those who say that they take them, or are too old to
// say anything. N61: the coordinator says what it remembers.
func TestCommandsGoToThoseWhoTakeThem(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		old, takes, not := r.peer("old").join(), r.process("takes", "t").join(), r.process("not", "n")
		not.reg.Capabilities = uint64(musterv1.AgentCapability_ANSWERS_PROBES) | 1<<20
		not.join()
		defer old.leave()
		defer takes.leave()
		defer not.leave()
		cmd := r.submit(to("old", "takes", "not"))
		if got := r.wantState(cmd.Id, "not", musterv1.Target_REJECTED); got.Reason != noCommands {
			t.Errorf("reason %q", got.Reason)
		}
		old.wantGot(1)
		takes.wantGot(1)
		if _, err := r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: to("not")}); status.Code(err) == codes.OK {
			t.Error("a command for nobody was taken")
		}
		// It stops taking them while one waits.
		takes.leave()
		waits := r.submit(to("takes"))
		again := r.process("takes", "t2")
		again.reg.Capabilities = uint64(musterv1.AgentCapability_ANSWERS_PROBES)
		again.join()
		defer again.leave()
		r.wantState(waits.Id, "takes", musterv1.Target_REJECTED)
		again.wantGot(0)
		not.wantGot(0)
		if got := not.let[0].Capabilities; got != 0xf {
			t.Errorf("the coordinator says it remembers %b", got)
		}
	})
}

// Fields of third parties in a registration stay with the agent, untouched, over
// a restart, as do their capability bits; and the registration is no change when
// it comes again (N47, N48, N57, N58).
func TestForeignFieldsStayWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := protowire.AppendString(protowire.AppendTag(nil, 101, protowire.BytesType), "theirs \x00\xff")
		ours := protowire.AppendVarint(protowire.AppendTag(nil, 90, protowire.VarintType), 7) // of a newer version of ours
		r := newRig(t)
		r.start()
		p := r.peer("a")
		p.reg.ProtoReflect().SetUnknown(append(ours, foreign...))
		p.reg.Capabilities = uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS) | 1<<40 // a bit of theirs
		p.reg.Attributes = &musterv1.Attributes{Ip: "192.0.2.1"}
		p.reg.Attributes.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1<<20, protowire.VarintType), 42))
		p.join().leave()
		r.stop()
		s := &counting{Store: r.store}
		r.store = s
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		p.join()
		defer p.leave()
		got := r.wantStatus("a", musterv1.Agent_ONLINE)
		if u := got.ProtoReflect().GetUnknown(); string(u) != string(foreign) {
			t.Errorf("kept %q, want %q", u, foreign)
		}
		if !proto.Equal(got.Attributes, p.reg.Attributes) || got.Capabilities != p.reg.Capabilities {
			t.Errorf("kept %v and %b, want %v and %b", got.Attributes, got.Capabilities, p.reg.Attributes, p.reg.Capabilities)
		}
		if n := got.Attributes.ProtoReflect().Descriptor().Fields().ByName("extras").Number(); n != firstForeign {
			t.Errorf("extras has the number %d, want the first of theirs", n)
		}
		if n := s.n.Load(); n != 1 { // the transition to ONLINE
			t.Errorf("%d commits by a registration that changes nothing", n)
		}
	})
}

// What a third party puts beside a message comes back beside its answer (N58).
func TestOpaqueComesBack(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		const theirs = "\x00 not \xff text"
		answers := make(chan *musterv1.Envelope, 10)
		mux := bus.NewMux()
		mux.Up = func(l *bus.Peer) { ask(t, l, theirs, r.peer("a").reg) }
		bus.Handle(mux, func(l *bus.Peer, env *musterv1.Envelope, _ *musterv1.Registered) error {
			answers <- env
			ask(t, l, theirs, &musterv1.Heartbeat{SequenceNum: 1})
			ask(t, l, theirs, &musterv1.Target{CommandId: "nonsense"})
			return nil
		})
		bus.Handle(mux, func(_ *bus.Peer, env *musterv1.Envelope, _ *musterv1.HeartbeatAck) error { answers <- env; return nil })
		bus.Handle(mux, func(_ *bus.Peer, env *musterv1.Envelope, _ *musterv1.Nack) error { answers <- env; return nil })
		d := bus.NewDealer(bus.Config{}, mux, []string{"mem://"}, bus.Null(), r.net.Dial)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		for range 3 {
			if env := <-answers; string(env.Opaque) != theirs || env.InReplyTo != "q" {
				t.Errorf("answered in %v", env)
			}
		}
		cancel()
		<-done
	})
}

// ask sends a message in an envelope with an id and opaque bytes.
func ask(t *testing.T, l *bus.Peer, opaque string, m proto.Message) {
	f, err := bus.Seal(&musterv1.Envelope{Id: "q", Opaque: []byte(opaque)}, m)
	if err == nil {
		err = l.SendFrames(f)
	}
	if err != nil {
		t.Error(err)
	}
}
