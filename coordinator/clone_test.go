package coordinator

import (
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// process is an agent with a run id of its own, on a machine of its own.
func (r *rig) process(id, run string) *peer {
	p := r.peer(id)
	p.reg.RunId, p.reg.Attributes = run, &musterv1.Attributes{MachineId: "machine-" + run}
	p.reg.Capabilities = uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS | musterv1.AgentCapability_ANSWERS_PROBES)
	return p
}

func alive(p *peer) bool {
	select {
	case <-p.current().Done():
		return false
	default:
		return true
	}
}

// Two processes use one id, and both live: the first keeps it, the second is
// refused with both addresses, and comes back slowly. The conflict is shown, and
// goes when the copy does.
func TestC056ClonedAgentIsRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first").join()
		defer a.leave()
		link := a.current()
		b := r.process("a", "copy").join()
		time.Sleep(10 * time.Second)
		if a.current() != link || !alive(a) {
			t.Fatal("the agent lost its link to a copy")
		}
		if n := b.lastNack(); n.Reason != musterv1.Nack_REFUSED || n.Field != "agent_id" {
			t.Errorf("the copy got %v", n)
		}
		got := r.wantStatus("a", musterv1.Agent_ONLINE)
		if c := got.Conflict; c.GetRefusedRunId() != "copy" || c.RefusedMachineId != "machine-copy" || c.Address == "" || c.RefusedAddress == "" || c.Time == nil {
			t.Errorf("conflict %v", c)
		}
		conflict := func(e *musterv1.Event) bool { return e.Agent.GetConflict() != nil }
		if n := r.told(conflict); n != 1 {
			t.Errorf("%d events tell of the conflict", n)
		}
		for range 20 {
			r.submit(to("a"))
		}
		a.wantGot(20)
		b.wantGot(0)
		time.Sleep(10 * time.Minute)
		b.leave()
		if n := len(b.nacks); n < 2 || n > registerBurst+int(comesPerSecond*600)+5 { // it heeds no retry_after, but is bounded all the same
			t.Errorf("the copy was refused %d times in 10 minutes", n)
		}
		if len(b.bye) == 0 || b.bye[0].RetryAfter.AsDuration() < 30*time.Second {
			t.Errorf("the copy was told %v", b.bye)
		}
		time.Sleep(conflictShown + time.Second)
		if c := r.wantStatus("a", musterv1.Agent_ONLINE).Conflict; c != nil {
			t.Errorf("the copy is gone, and still shown: %v", c)
		}
	})
}

// After a conflict the link of the agent breaks for a moment. The copy, which
// tries all the time, does not get its place; and gets it when the agent is gone
// for good.
func TestC056CopyDoesNotWinTheNextBlip(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first").join()
		b := r.process("a", "copy").join()
		defer b.leave()
		time.Sleep(2 * time.Second)
		a.leave()
		time.Sleep(holderFirst - 30*time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		again := r.process("a", "second")
		again.reg.Attributes.MachineId = a.reg.Attributes.MachineId
		again.join()
		if got := r.wantStatus("a", musterv1.Agent_ONLINE); got.Conflict == nil {
			t.Errorf("got %v", got)
		}
		again.leave()
		time.Sleep(holderFirst + 2*conflictRetry)
		if got := r.wantStatus("a", musterv1.Agent_ONLINE); b.r.c.fleet.agents["a"].holder.runID != "copy" {
			t.Errorf("the agent is gone for good, and the other did not get its id: %v", got)
		}
	})
}

// A host died and came back before its old link was noticed dead: nobody answers
// on that, so the new process has the agent within 2 s.
func TestC018NewProcessBeforeTheOldLinkIsNoticedDead(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.deaf.Store(true)
		a.join()
		defer a.leave()
		old := a.current()
		a.mute.Store(true) // it is dead: it does not come back
		b := r.process("a", "second").join()
		defer b.leave()
		cmd := r.submit(to("a"))
		time.Sleep(2 * time.Second)
		b.wantGot(1)
		select {
		case <-old.Done():
		default:
			t.Error("the old link is still open")
		}
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		if got := r.wantStatus("a", musterv1.Agent_ONLINE); got.Conflict != nil {
			t.Errorf("a conflict of a dead process: %v", got.Conflict)
		}
	})
}

// The older link ends while it is asked: the newer one need not wait.
func TestC018OldLinkEndsWhileItIsAsked(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.deaf.Store(true)
		a.join()
		b := r.process("a", "second").join()
		defer b.leave()
		if len(b.commands()) != 0 || r.c.fleet.agents["a"].conflict.deciding == nil {
			t.Fatal("nobody was asked")
		}
		a.leave()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		if got := r.c.fleet.agents["a"].holder.runID; got != "second" {
			t.Errorf("the agent is %q", got)
		}
	})
}

// While the older link is asked its process comes back on a new one: it lives, and
// the copy is refused.
func TestC056AgentComesBackWhileItsOldLinkIsAsked(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.deaf.Store(true)
		a.join()
		defer a.leave()
		b := r.process("a", "copy").join()
		defer b.leave()
		again := r.process("a", "first").join()
		defer again.leave()
		a.mute.Store(true)
		if n := b.lastNack(); n.Reason != musterv1.Nack_REFUSED {
			t.Errorf("the copy got %v", n)
		}
		time.Sleep(10 * time.Second)
		if got := r.c.fleet.agents["a"].holder.runID; got != "first" || !alive(again) {
			t.Errorf("the agent is %q", got)
		}
	})
}

// The newer link ends while the older one is asked: nothing is left of it.
func TestC056ProbeOutlivesTheNewerLink(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.deaf.Store(true)
		a.join()
		defer a.leave()
		link := a.current()
		b := r.process("a", "second").join()
		b.leave()
		time.Sleep(2 * probeTime)
		synctest.Wait()
		if s := r.c.fleet.linkOf("a"); s == nil || a.current() != link || !alive(a) {
			t.Error("a link that was gone took the agent from the one that is there")
		}
		if r.c.fleet.agents["a"].conflict.deciding != nil {
			t.Error("the question is still open")
		}
		a.beat()
		time.Sleep(time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

// An agent that cannot be asked gives way. But when it comes back, it was not
// gone: now two are there, and it is refused (C017).
func TestC017LinkThatCannotBeAsked(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.process("a", "first")
		a.reg.Capabilities = uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS)
		a.join()
		defer a.leave()
		b := r.process("a", "second")
		b.reg.Capabilities = a.reg.Capabilities
		b.join()
		defer b.leave()
		time.Sleep(time.Minute) // the first comes back meanwhile
		cmd := r.submit(to("a"))
		a.wantGot(0)
		b.wantGot(1)
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		if n := a.lastNack(); n.Reason != musterv1.Nack_REFUSED {
			t.Errorf("the first got %v", n)
		}
		if c := r.wantStatus("a", musterv1.Agent_ONLINE).Conflict; c.GetRefusedRunId() != "first" {
			t.Errorf("conflict %v", c)
		}
	})
}
