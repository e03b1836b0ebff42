package coordinator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) peers(n int) (ps []*peer, all *musterv1.Command) {
	all = &musterv1.Command{Type: "exec", Target: &musterv1.TargetSelector{All: true}}
	for i := range n {
		ps = append(ps, r.peer(fmt.Sprintf("p%03d", i)).join())
	}
	return ps, all
}

func leaveAll(ps []*peer) {
	for _, p := range ps {
		p.leave()
	}
}

// sentTo returns the peers that have got command id.
func sentTo(ps []*peer, id string) (out []*peer) {
	for _, p := range ps {
		for _, c := range p.commands() {
			if c.Id == id {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

func TestRolloutGoesCanaryFirstThenAWindow(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, cmd := r.peers(20)
		defer leaveAll(ps)
		cmd.Rollout = &musterv1.Rollout{Canary: "2", Batch: "25%"}
		id := r.submit(cmd).Id
		first := sentTo(ps, id)
		if len(first) != 2 {
			t.Fatalf("the canary went to %d, want 2", len(first))
		}
		first[0].report(id, musterv1.Target_SUCCEEDED)
		time.Sleep(5 * time.Second)
		if n := len(sentTo(ps, id)); n != 2 {
			t.Fatalf("half the canary is done and %d were sent", n)
		}
		first[1].report(id, musterv1.Target_SUCCEEDED)
		done := map[*peer]bool{first[0]: true, first[1]: true}
		for len(done) < 20 {
			now := sentTo(ps, id)
			flying := len(now) - len(done)
			if want := min(5, 20-len(done)); flying != want {
				t.Fatalf("%d done, %d in the window, want %d", len(done), flying, want)
			}
			for _, p := range now {
				if !done[p] {
					p.report(id, musterv1.Target_SUCCEEDED)
					done[p] = true
					break
				}
			}
		}
		if c := r.command(id); c.State != musterv1.Command_DONE || c.Counts.Succeeded != 20 {
			t.Errorf("got %v", c)
		}
	})
}

func TestRolloutPausesBetween(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, cmd := r.peers(4)
		defer leaveAll(ps)
		cmd.Rollout = &musterv1.Rollout{Canary: "1", Batch: "1", PauseBetween: lasting(30 * time.Second)}
		id := r.submit(cmd).Id
		for n := 1; n <= 4; n++ {
			now := sentTo(ps, id)
			if len(now) != n {
				t.Fatalf("%d sent, want %d", len(now), n)
			}
			for _, p := range now {
				p.report(id, musterv1.Target_SUCCEEDED)
			}
			time.Sleep(29 * time.Second)
			if got := len(sentTo(ps, id)); got != n {
				t.Fatalf("%d sent before the pause was over, want %d", got, n)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

func TestRolloutHaltsOverItsBudget(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, cmd := r.peers(30)
		defer leaveAll(ps)
		cmd.Rollout = &musterv1.Rollout{Canary: "1", Batch: "10%", MaxFailures: "2"}
		id := r.submit(cmd).Id
		for range 3 {
			for _, p := range sentTo(ps, id) {
				p.report(id, musterv1.Target_FAILED)
				if r.command(id).State != musterv1.Command_OPEN {
					break
				}
			}
		}
		c := r.command(id)
		sent := len(sentTo(ps, id))
		if c.State != musterv1.Command_HALTED || c.StateReason == "" || sent > 5 {
			t.Fatalf("after 3 failures: %s (%s), %d sent", c.State, c.StateReason, sent)
		}
		time.Sleep(10 * time.Minute)
		if n := len(sentTo(ps, id)); n != sent {
			t.Fatalf("%d more were sent after the halt", n-sent)
		}

		// A restart in the middle sends nothing either.
		leaveAll(ps)
		r.stop()
		r.start()
		for _, p := range ps {
			p.reg.Commands = nil
			p.join()
		}
		time.Sleep(time.Minute)
		if n := len(sentTo(ps, id)); n != sent {
			t.Fatalf("%d more were sent after the halt and a restart", n-sent)
		}
		if c := r.command(id); c.State != musterv1.Command_HALTED {
			t.Fatalf("after the restart: %s", c.State)
		}

		// Resumed, it has its whole budget again.
		if _, err := r.cmds.ResumeCommand(t.Context(), &musterv1.ControlCommandRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		if n := len(sentTo(ps, id)); n <= sent {
			t.Errorf("nothing was sent after it was resumed")
		}
	})
}

// A version that makes agents die is found by the budget, too.
func TestVanishedAgentsCountAsFailed(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, cmd := r.peers(20)
		cmd.Rollout = &musterv1.Rollout{Canary: "1", Batch: "10%"}
		id := r.submit(cmd).Id
		got := sentTo(ps, id)
		got[0].leave()
		time.Sleep(59 * time.Second)
		if c := r.command(id); c.State != musterv1.Command_OPEN {
			t.Fatalf("halted too early: %v", c)
		}
		time.Sleep(3 * time.Second)
		if c := r.command(id); c.State != musterv1.Command_HALTED {
			t.Fatalf("an agent vanished: %v", c)
		}
		if n := len(sentTo(ps, id)); n != 1 {
			t.Errorf("%d sent", n)
		}
		for _, p := range ps {
			if p != got[0] {
				p.leave()
			}
		}
	})
}

// A target that was offline before it was sent takes no place.
func TestOfflineTargetTakesNoPlace(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, cmd := r.peers(5)
		ps[0].leave()
		ps[1].leave()
		defer leaveAll(ps[2:])
		cmd.Rollout = &musterv1.Rollout{Canary: "1", Batch: "1"}
		id := r.submit(cmd).Id
		for n := 1; n <= 3; n++ {
			now := sentTo(ps, id)
			if len(now) != n {
				t.Fatalf("%d sent, want %d", len(now), n)
			}
			for _, p := range now {
				p.report(id, musterv1.Target_SUCCEEDED)
			}
		}
		ps[0].join()
		ps[0].wantGot(1)
		ps[0].leave()
	})
}

func TestBadRolloutIsRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		ps, _ := r.peers(3)
		defer leaveAll(ps)
		for _, ro := range []*musterv1.Rollout{
			{Batch: "-5%"}, {Batch: "abc"}, {Batch: "0"}, {Batch: "101%"}, {Canary: "1.5"}, {MaxFailures: "99999999999"}, {Canary: "%"},
		} {
			cmd := to("p000")
			cmd.Rollout = ro
			_, err := r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: cmd})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", ro, err)
			}
		}
	})
}

func TestC041CancelAgainstTheEnd(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		r.peer("off").join().leave()
		cmd := r.submit(to("a", "off"))
		a.report(cmd.Id, musterv1.Target_RUNNING)
		got, err := r.cmds.CancelCommand(t.Context(), &musterv1.ControlCommandRequest{Id: cmd.Id, Reason: "wrong one"})
		if err != nil || got.State != musterv1.Command_CANCELLED || got.StateReason != "wrong one" {
			t.Fatalf("%v, %v", got, err)
		}
		r.wantState(cmd.Id, "off", musterv1.Target_CANCELLED)
		if a.wantCancels(1); a.cancels[0] != cmd.Id {
			t.Errorf("cancelled %v", a.cancels)
		}
		r.net.Cut() // it is told again on a new link
		time.Sleep(5 * time.Second)
		a.wantCancels(2)
		a.report(cmd.Id, musterv1.Target_INTERRUPTED)
		c := r.command(cmd.Id)
		if c.State != musterv1.Command_CANCELLED || c.EndTime == nil || c.Counts.Cancelled != 1 || c.Counts.Interrupted != 1 {
			t.Errorf("got %v", c)
		}
		a.report(cmd.Id, musterv1.Target_SUCCEEDED) // too late: the first word stays
		r.wantState(cmd.Id, "a", musterv1.Target_INTERRUPTED)
		_, err = r.cmds.CancelCommand(t.Context(), &musterv1.ControlCommandRequest{Id: cmd.Id})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("cancel of an ended command: %v", err)
		}
		_, err = r.cmds.CancelCommand(t.Context(), &musterv1.ControlCommandRequest{Id: "01JD0000000000000000000000"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("cancel of an unknown command: %v", err)
		}
	})
}

func TestPausedCommandIsNotSentAndStillExpires(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		r.peer("b").join().leave()
		cmd := to("a", "b")
		cmd.ExpiresIn = lasting(time.Minute)
		id := r.submit(cmd).Id
		a.wantGot(1)
		if _, err := r.cmds.PauseCommand(t.Context(), &musterv1.ControlCommandRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		b := r.peer("b").join()
		defer b.leave()
		time.Sleep(20 * time.Second)
		b.wantGot(0)
		if _, err := r.cmds.ResumeCommand(t.Context(), &musterv1.ControlCommandRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		b.wantGot(1)
		for range 2 {
			if _, err := r.cmds.PauseCommand(t.Context(), &musterv1.ControlCommandRequest{Id: id}); err != nil {
				t.Fatal(err)
			}
		}
		c := r.peer("c").join()
		defer c.leave()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.command(id); got.State != musterv1.Command_PAUSED {
			t.Errorf("got %v", got)
		}
		a.report(id, musterv1.Target_SUCCEEDED)
		b.report(id, musterv1.Target_SUCCEEDED)
		if got := r.command(id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
	})
}
