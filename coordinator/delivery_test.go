package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestCommandGoesDownAndItsResultComesUp(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		defer b.leave()
		cmd := r.submit(to("b", "a", "a"))
		if cmd.Counts.Total != 2 || cmd.State != musterv1.Command_OPEN {
			t.Fatalf("got %v", cmd)
		}
		for _, p := range []*peer{a, b} {
			p.wantGot(1)
			got := p.commands()[0]
			if left := got.ExpiresIn.AsDuration(); got.Id != cmd.Id || got.Type != "exec" || string(got.Input) != `{"argv":["true"]}` || got.Target != nil || left <= 0 || left > time.Hour {
				t.Fatalf("the agent got %v", got)
			}
			r.wantState(cmd.Id, p.reg.AgentId, musterv1.Target_SENT)
			p.report(cmd.Id, musterv1.Target_RECEIVED)
			p.report(cmd.Id, musterv1.Target_RUNNING)
			r.wantState(cmd.Id, p.reg.AgentId, musterv1.Target_RUNNING)
		}
		a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		a.wantAcked(cmd.Id)
		if c := r.command(cmd.Id); c.State != musterv1.Command_OPEN || c.Counts.Succeeded != 1 || c.Counts.Running != 1 {
			t.Fatalf("got %v", c)
		}
		b.report(cmd.Id, musterv1.Target_FAILED)
		if c := r.command(cmd.Id); c.State != musterv1.Command_DONE || c.Counts.Failed != 1 || c.Counts.Succeeded != 1 || c.EndTime == nil {
			t.Fatalf("got %v", c)
		}
		if n := len(r.c.ledger.ids()) + len(r.c.ledger.queues); n != 0 {
			t.Errorf("%d things left in memory of an ended command", n)
		}
	})
}

func TestC044CommandToNobody(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		for name, c := range map[string]struct {
			cmd   *musterv1.Command
			field string
		}{
			"unknown":   {to("never"), "target.agents[0]"},
			"mixed":     {to("a", "never", "nor"), "target.agents[1]"},
			"empty":     {to(), "target"},
			"none":      {&musterv1.Command{Type: "exec"}, "target"},
			"bad id":    {to("a", "../b"), "target.agents[1]"},
			"both":      {&musterv1.Command{Type: "exec", Target: &musterv1.TargetSelector{All: true, Agents: []string{"a"}}}, "target"},
			"type":      {&musterv1.Command{Type: "../sh", Target: &musterv1.TargetSelector{All: true}}, "type"},
			"no object": {&musterv1.Command{Type: "exec", Input: []byte("[]"), Target: &musterv1.TargetSelector{All: true}}, "input"},
			"timeout":   {&musterv1.Command{Type: "exec", Timeout: lasting(-1), Target: &musterv1.TargetSelector{All: true}}, "timeout"},
			"expiry":    {&musterv1.Command{Type: "exec", ExpiresIn: lasting(31 * 24 * time.Hour), Target: &musterv1.TargetSelector{All: true}}, "expires_in"},
		} {
			_, err := r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: c.cmd})
			if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.HasPrefix(s.Message(), c.field+":") {
				t.Errorf("%s: got %v, want field %s", name, err, c.field)
			}
		}
		page, err := r.cmds.ListCommands(t.Context(), &musterv1.ListCommandsRequest{})
		if err != nil || len(page.Commands) != 0 {
			t.Errorf("%d commands were made of refused requests, %v", len(page.Commands), err)
		}
	})
}

// A command that was sent is sent again when the link is new, and after 30 s
// without an answer, but not when the agent says that it has it.
func TestUnansweredCommandIsSentAgain(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		a.wantGot(1)
		time.Sleep(29 * time.Second)
		a.wantGot(1)
		time.Sleep(2 * time.Second)
		a.wantGot(2)
		r.net.Cut()
		time.Sleep(5 * time.Second)
		a.wantGot(3)
		a.report(cmd.Id, musterv1.Target_RECEIVED)
		time.Sleep(2 * time.Minute)
		a.wantGot(3)
		a.reg.Commands = []*musterv1.HeldCommand{{CommandId: cmd.Id, State: musterv1.Target_RECEIVED}}
		r.net.Cut()
		time.Sleep(5 * time.Second)
		a.wantGot(3)
	})
}

func TestBusyAgentIsAskedAgainLater(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		a.say(&musterv1.Busy{CommandId: cmd.Id, RetryAfter: lasting(5 * time.Second)})
		time.Sleep(4 * time.Second)
		a.wantGot(1)
		time.Sleep(2 * time.Second)
		a.wantGot(2)
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
	})
}

func TestCommandsInFlightAreBounded(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		var ids []string
		for range 100 {
			ids = append(ids, r.submit(to("a")).Id)
		}
		a.wantGot(64)
		for i, got := range a.commands() {
			if got.Id != ids[i] {
				t.Fatalf("command %d is %s, want %s: the order is that of submission", i, got.Id, ids[i])
			}
		}
		for _, id := range ids[:40] {
			a.report(id, musterv1.Target_SUCCEEDED)
		}
		a.wantGot(100)
	})
}

func TestC031CommandsSurviveTheCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.peer("a").join()
		queued := r.submit(to("a"))
		received := r.submit(to("a"))
		lostWord := r.submit(to("a"))
		a.wantGot(3)
		a.report(received.Id, musterv1.Target_RECEIVED)
		a.leave()
		r.stop()

		r.start()
		r.wantState(received.Id, "a", musterv1.Target_SENT) // its mark is stored, the rest the agent tells
		a = r.peer("a")
		a.reg.Journal.Seq = 7
		a.reg.Commands = []*musterv1.HeldCommand{{CommandId: received.Id, State: musterv1.Target_RUNNING}, {CommandId: lostWord.Id, State: musterv1.Target_SUCCEEDED}}
		a.join()
		defer func() { a.leave(); r.stop(); r.store.Close() }()
		a.wantGot(1) // only the one that the agent does not know
		if got := a.commands()[0]; got.Id != queued.Id {
			t.Fatalf("sent again: %s", got.Id)
		}
		r.wantState(received.Id, "a", musterv1.Target_RUNNING)
		for _, id := range []string{queued.Id, received.Id, lostWord.Id} {
			a.report(id, musterv1.Target_SUCCEEDED)
			r.wantState(id, "a", musterv1.Target_SUCCEEDED)
		}
		a.wantAcked(queued.Id, received.Id, lostWord.Id)
	})
}

// A journal that is new or was set back cannot tell what ran: nothing that was
// sent to the old one is sent again, unless it may run twice.
func TestSentCommandsAreLostWithTheJournal(t *testing.T) {
	for name, journal := range map[string]*musterv1.JournalPosition{
		"new":      {Epoch: "e2", Seq: 100},
		"set back": {Epoch: "e1", Seq: 4},
		"none":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			fleetTest(t, func(t *testing.T, r *rig) {
				a := r.peer("a")
				a.reg.Journal.Seq = 5
				a.join()
				once := r.submit(to("a"))
				again := to("a")
				again.Idempotent = true
				again = r.submit(again)
				known := r.submit(to("a"))
				a.wantGot(3)
				a.leave()
				waiting := r.submit(to("a"))

				b := r.peer("a")
				b.reg.Journal = journal
				b.reg.Commands = []*musterv1.HeldCommand{{CommandId: known.Id, State: musterv1.Target_FAILED}}
				b.join()
				defer b.leave()
				if got := r.wantState(once.Id, "a", musterv1.Target_LOST); got.EndTime == nil {
					t.Error("it is not said when it was LOST")
				}
				b.wantGot(2)
				for i, id := range []string{again.Id, waiting.Id} {
					if got := b.commands()[i].Id; got != id {
						t.Errorf("command %d is %s, want %s", i, got, id)
					}
				}
				b.report(known.Id, musterv1.Target_FAILED)
				r.wantState(known.Id, "a", musterv1.Target_FAILED)
			})
		})
	}
}

// What an agent told of its journal survives the coordinator, so that a copy
// that was restored while both were down is noticed.
func TestRestoredJournalIsNoticedAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.peer("a")
		a.reg.Journal.Seq = 5
		a.join()
		cmd := r.submit(to("a"))
		a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_RUNNING, JournalSeq: 7})
		time.Sleep(2 * time.Second)
		a.leave()
		r.stop()
		r.start()
		b := r.peer("a")
		b.reg.Journal.Seq = 5
		b.join()
		defer func() { b.leave(); r.stop(); r.store.Close() }()
		r.wantState(cmd.Id, "a", musterv1.Target_LOST)
		b.wantGot(0)
	})
}

func TestC039ExpiredCommandIsNotSent(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.peer("a").join().leave()
		cmd := to("a")
		cmd.ExpiresIn = lasting(10 * time.Second)
		cmd = r.submit(cmd)
		time.Sleep(11 * time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_EXPIRED)
		if c := r.command(cmd.Id); c.State != musterv1.Command_DONE || c.Counts.Expired != 1 {
			t.Fatalf("got %v", c)
		}
		a := r.peer("a").join()
		defer a.leave()
		a.wantGot(0)
	})
}

func TestC038ResultAfterTheEndIsKeptBesideIt(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := to("a")
		cmd.ExpiresIn, cmd.Timeout = lasting(10*time.Second), lasting(5*time.Second)
		cmd = r.submit(cmd)
		a.report(cmd.Id, musterv1.Target_RUNNING)
		time.Sleep(10*time.Second + 5*time.Second + r.c.cfg.Grace - time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_RUNNING)
		time.Sleep(2 * time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_LOST)
		for range 2 {
			a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		}
		a.wantAcked(cmd.Id, cmd.Id)
		if got := r.wantState(cmd.Id, "a", musterv1.Target_LOST); got.Late.GetState() != musterv1.Target_SUCCEEDED {
			t.Errorf("the late report is %v", got.Late)
		}
		if c := r.command(cmd.Id); c.Counts.Lost != 1 || c.Counts.Succeeded != 0 {
			t.Errorf("counts changed after the end: %v", c.Counts)
		}
	})
}

func TestC035FirstResultWins(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		b := r.peer("b").join()
		defer b.leave()
		cmd := r.submit(to("a", "b")) // stays open for b
		code := func(n int32) *musterv1.Target {
			return &musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_FAILED, ExitCode: &n}
		}
		for range 50 {
			a.say(code(7))
		}
		a.say(code(8))
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		a.say(code(9))
		if got := r.target(cmd.Id, "a"); got.GetExitCode() != 7 || got.Late != nil {
			t.Errorf("got %v", got)
		}
		time.Sleep(2 * ackDelay)
		synctest.Wait()
		if n := len(a.acked); n != 52 {
			t.Errorf("%d acknowledged, want 52: a repeat is acknowledged, too", n)
		}
		if c := r.command(cmd.Id); c.Counts.Failed != 1 || c.Counts.Total != 2 {
			t.Errorf("counts %v", c.Counts)
		}
	})
}

func TestC036ResultOfAnotherAgentIsRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		defer b.leave()
		cmd := r.submit(to("a"))
		b.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED})
		if n := b.lastNack(); n.Reason != musterv1.Nack_INVALID || n.Field != "agent_id" {
			t.Errorf("got %v", n)
		}
		b.report(cmd.Id, musterv1.Target_SUCCEEDED) // as itself: not its command
		b.wantAcked(cmd.Id)
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
	})
}

func TestC037ResultForNothing(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		const never = "01JD0000000000000000000000"
		a.report(never, musterv1.Target_SUCCEEDED)
		a.wantAcked(never)
		for _, id := range []string{"", strings.Repeat("x", 60<<10), "../x"} {
			a.report(id, musterv1.Target_SUCCEEDED)
			if n := a.lastNack(); n.Reason != musterv1.Nack_INVALID || n.Field != "command_id" {
				t.Errorf("got %v", n)
			}
		}
		if _, err := r.cmds.GetCommand(t.Context(), &musterv1.GetCommandRequest{Id: never}); status.Code(err) != codes.NotFound {
			t.Errorf("got %v", err)
		}
	})
}

func TestOfflineTargetsAreCancelledOnRequest(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.peer("gone").join().leave()
		time.Sleep(6 * time.Minute)
		r.wantStatus("gone", musterv1.Agent_OFFLINE)
		a := r.peer("a").join()
		defer a.leave()
		cmd := to("a", "gone")
		cmd.WhenOffline = musterv1.Command_CANCEL
		cmd = r.submit(cmd)
		r.wantState(cmd.Id, "gone", musterv1.Target_CANCELLED)
		a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		if c := r.command(cmd.Id); c.State != musterv1.Command_DONE || c.Counts.Cancelled != 1 {
			t.Errorf("got %v", c)
		}
	})
}

func TestLongPollEndsWithTheCommand(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		time.AfterFunc(5*time.Second, func() {
			a.link.Send(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED})
		})
		start := time.Now()
		got, err := r.cmds.GetCommand(t.Context(), &musterv1.GetCommandRequest{Id: cmd.Id, Wait: lasting(time.Minute)})
		if err != nil || got.State != musterv1.Command_DONE || time.Since(start) != 5*time.Second {
			t.Errorf("after %s: %v, %v", time.Since(start), got, err)
		}
	})
}

// A long list is stored apart from its command, and 7,000 ids of 128 bytes are
// no error.
func TestLongTargetListIsStoredApart(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		cmd := to()
		for i := range 7000 {
			id := fmt.Sprintf("%0128d", i)
			r.c.adopt(&musterv1.Agent{Id: id})
			cmd.Target.Agents = append(cmd.Target.Agents, id)
		}
		got := r.submit(cmd)
		if got.Counts.Total != 7000 || len(got.Target.GetAgents()) != 0 {
			t.Errorf("%v, %d ids shown", got.Counts, len(got.Target.GetAgents()))
		}
		page, err := r.cmds.ListTargets(t.Context(), &musterv1.ListTargetsRequest{CommandId: got.Id, PageSize: 10})
		if err != nil || len(page.Targets) != 10 || page.NextPageToken == "" {
			t.Errorf("%v, %v", page, err)
		}
	})
}

func TestFleetHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.MaxAgents = 2
		r.start()
		ps := []*peer{r.peer("a").join(), r.peer("b").join(), r.peer("c").join()}
		if n := ps[2].lastNack(); n.Reason != musterv1.Nack_REFUSED {
			t.Errorf("got %v", n)
		}
		if n := r.c.fleet.size(); n != 2 {
			t.Errorf("%d agents are known", n)
		}
		again := r.peer("a").join() // a known one may come back
		r.wantStatus("a", musterv1.Agent_ONLINE)
		again.leave()
		leaveAll(ps)
		r.stop()
		r.store.Close()
	})
}
