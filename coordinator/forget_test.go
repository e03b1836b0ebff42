package coordinator

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) delete(id string) error {
	_, err := (&agentService{c: r.c}).DeleteAgent(r.t.Context(), &musterv1.DeleteAgentRequest{Id: id})
	return err
}

// rowsNaming returns the keys in the store that name an agent.
func (r *rig) rowsNaming(id string) (keys []string) {
	r.t.Helper()
	page, err := r.store.Scan(r.t.Context(), spaceFleet, store.Range{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, kv := range page.Items {
		if strings.HasSuffix(string(kv.Key), "/"+id) {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

// An agent is deleted while it is connected and has commands: one that it runs,
// one that it was sent, one that waits. All become final, its link is closed, and
// when it comes again it is a new agent. What it did can still be read.
func TestC058ForgetAgentThatIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.InFlight = 2
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		defer b.leave()
		first := r.wantStatus("a", musterv1.Agent_ONLINE).RegisterTime.AsTime()
		done := r.submit(to("a", "b"))
		a.report(done.Id, musterv1.Target_SUCCEEDED)
		running := r.submit(to("a"))
		a.report(running.Id, musterv1.Target_RUNNING)
		sent := r.submit(to("a"))
		waiting := r.submit(to("a", "b"))
		r.wantState(sent.Id, "a", musterv1.Target_SENT)
		r.wantState(waiting.Id, "a", musterv1.Target_QUEUED)
		link := a.current()
		time.Sleep(time.Minute)

		if err := r.delete("a"); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]musterv1.Target_State{
			done.Id: musterv1.Target_SUCCEEDED, running.Id: musterv1.Target_LOST, sent.Id: musterv1.Target_LOST, waiting.Id: musterv1.Target_CANCELLED,
		} {
			if got := r.wantState(id, "a", want); want != musterv1.Target_SUCCEEDED && !strings.Contains(got.Reason, "deleted") {
				t.Errorf("reason %q", got.Reason)
			}
		}
		r.wantState(waiting.Id, "b", musterv1.Target_SENT)
		if got := r.command(sent.Id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
		if keys := r.rowsNaming("a"); len(keys) > 0 {
			t.Errorf("the store still holds %q", keys)
		}
		select {
		case <-link.Done():
		case <-time.After(2 * time.Second):
			t.Error("the link is still there")
		}
		if len(a.bye) == 0 || a.bye[0].RetryAfter.AsDuration() <= 0 {
			t.Errorf("told %v", a.bye)
		}
		if n := r.told(func(e *musterv1.Event) bool { return e.Deleted && e.Agent.GetId() == "a" }); n != 1 {
			t.Errorf("%d events tell that it is gone", n)
		}

		time.Sleep(time.Minute) // it has come again
		got := r.wantStatus("a", musterv1.Agent_ONLINE)
		if !got.RegisterTime.AsTime().After(first) {
			t.Errorf("registered %v, as before", got.RegisterTime)
		}
		again := r.submit(to("a"))
		r.wantState(again.Id, "a", musterv1.Target_SENT)
		a.report(running.Id, musterv1.Target_SUCCEEDED)
		synctest.Wait()
		if late := r.wantState(running.Id, "a", musterv1.Target_LOST).Late; late.GetState() != musterv1.Target_SUCCEEDED {
			t.Errorf("what it told afterwards: %v", late)
		}

		a.leave()
		time.Sleep(6 * time.Minute)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
		if err := r.delete("a"); err != nil {
			t.Error(err)
		}
		if err := r.delete("a"); status.Code(err) != codes.NotFound {
			t.Errorf("deleted twice: %v", err)
		}
		r.wantState(done.Id, "a", musterv1.Target_SUCCEEDED)
	})
}

// Deleted while the disk is full: it is gone at once, and stays so once the store
// is well.
func TestC058ForgetWhileTheStoreRefuses(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		r.peer("a").join().leave()
		cmd := r.submit(to("a"))
		s.refuse.Store(resPrefix)
		done := make(chan error, 1)
		go func() { done <- r.delete("a") }()
		time.Sleep(10 * time.Second)
		if v := r.c.fleet.view("a"); v != nil {
			t.Errorf("still shown: %v", v)
		}
		s.refuse.Store(agentPrefix)
		time.Sleep(2 * time.Second)
		s.refuse.Store("")
		time.Sleep(2 * time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_CANCELLED)
		if keys := r.rowsNaming("a"); len(keys) > 0 {
			t.Errorf("the store still holds %q", keys)
		}
		<-done // an error or none: it is done either way
	})
}

// It comes again between the deletion and its being stored: the new one stays.
func TestC058NewAgentOutlivesTheOldOnesDeletion(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		r.peer("a").join().leave()
		s.refuse.Store(agentPrefix)
		if err := r.delete("a"); err == nil {
			t.Error("deleted, and not stored")
		}
		s.refuse.Store("")
		a := r.peer("a").join()
		time.Sleep(3 * time.Second)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		if keys := r.rowsNaming("a"); len(keys) == 0 {
			t.Error("the store lost the new agent")
		}
		a.leave()
		r.stop()
		r.start()
		r.wantStatus("a", musterv1.Agent_SUSPECT)
	})
}

// An agent is deleted while its registration is on its way to the store.
func TestC058ForgetWhileItRegisters(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.peer("a").join().leave()
		a := r.c.fleet.agents["a"]
		if err := r.delete("a"); err != nil {
			t.Fatal(err)
		}
		b := r.peer("a").join()
		defer b.leave()
		// As if it had been planned before the deletion.
		s := sessionOf(r.c.fleet.agents["a"].session.peer)
		r.c.admit(registration{session: s, msg: b.reg, env: nil, row: a.row, agent: a})
		time.Sleep(time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		if len(b.bye) == 0 {
			t.Error("the old registration was taken")
		}
	})
}

// A copy waits for the answer of an agent that is deleted meanwhile.
func TestC058ForgetWhileAProbeIsOut(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.deaf.Store(true)
		a.join()
		defer a.leave()
		b := r.process("a", "copy").join()
		b.mute.Store(true)
		if err := r.delete("a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.leave()
		if len(b.bye) == 0 {
			t.Error("the one that waited was not told")
		}
		time.Sleep(time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

// Who was OFFLINE for long is forgotten, unless a command waits for it; a restart
// neither hastens nor prevents that.
func TestAgentsThatStayAwayAreForgotten(t *testing.T) {
	for name, restart := range map[string]bool{"while it runs": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.cfg.ForgetAfter = 10 * time.Hour
				r.start()
				defer func() { r.stop(); r.store.Close() }()
				r.peer("gone").join().leave()
				r.peer("waited-for").join().leave()
				here := r.peer("here").join()
				cmd := to("waited-for")
				cmd.ExpiresIn = lasting(12*time.Hour + 30*time.Minute)
				cmd = r.submit(cmd)
				time.Sleep(5 * time.Hour)
				if restart {
					here.leave()
					r.stop()
					time.Sleep(time.Hour)
					r.start()
					here = r.peer("here").join()
					time.Sleep(3 * time.Hour)
				} else {
					time.Sleep(4 * time.Hour)
				}
				r.wantStatus("gone", musterv1.Agent_OFFLINE)
				time.Sleep(3 * time.Hour)
				if v := r.c.fleet.view("gone"); v != nil {
					t.Errorf("still known: %v", v)
				}
				if keys := r.rowsNaming("gone"); len(keys) > 0 {
					t.Errorf("the store still holds %q", keys)
				}
				r.wantStatus("waited-for", musterv1.Agent_OFFLINE)
				r.wantState(cmd.Id, "waited-for", musterv1.Target_QUEUED)
				time.Sleep(3 * time.Hour)
				if v := r.c.fleet.view("waited-for"); v != nil {
					t.Errorf("still known: %v", v)
				}
				r.wantState(cmd.Id, "waited-for", musterv1.Target_EXPIRED)
				r.wantStatus("here", musterv1.Agent_ONLINE)
				here.leave()
			})
		})
	}
}

func TestForgetAfterNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.ForgetAfter = -1
		r.start()
		r.peer("a").join().leave()
		time.Sleep(time.Hour)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
		if r.c.fleet.agents["a"].silence.Stop() {
			t.Error("it waits to be forgotten")
		}
		r.stop()
		r.store.Close()
	})
}

// A wall clock that is years ahead at a start forgets nobody who comes back in
// the first hour.
func TestWrongClockAtTheStartForgetsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.peer("a").join().leave()
		time.Sleep(6 * time.Minute)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
		r.stop()
		r.cfg.Now = func() time.Time { return time.Now().Add(5 * 365 * 24 * time.Hour) }
		r.start()
		time.Sleep(59 * time.Minute)
		a := r.peer("a").join()
		time.Sleep(2 * time.Hour)
		r.wantStatus("a", musterv1.Agent_ONLINE)
		a.leave()
		r.stop()
		r.store.Close()
	})
}

// A hundred agents come and are deleted, and nothing is left of them.
func TestForgottenAgentsLeaveNothing(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for range 100 {
			a := r.process("a", "run").join()
			cmd := r.submit(to("a"))
			a.wantGot(1)
			a.report(cmd.Id, musterv1.Target_RUNNING)
			a.leave()
			if err := r.delete("a"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c := r.c
		c.fleet.mu.Lock()
		c.ledger.mu.Lock()
		c.dispatch.mu.Lock()
		c.groups.mu.Lock()
		defer c.fleet.mu.Unlock()
		defer c.ledger.mu.Unlock()
		defer c.dispatch.mu.Unlock()
		defer c.groups.mu.Unlock()
		if n := len(c.fleet.agents) + len(c.ledger.queues) + len(c.ledger.open) + len(c.dispatch.now) + len(c.dispatch.later) + len(c.journals.unsaved) +
			len(c.groups.byAgent) + len(c.groups.pending) + len(c.fresh.byKey); n > 0 {
			t.Errorf("left: %d agents, %d queues, %d commands, %d and %d to look at", len(c.fleet.agents), len(c.ledger.queues), len(c.ledger.open), len(c.dispatch.now), len(c.dispatch.later))
		}
	})
}
