package coordinator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// revsOf returns the revisions of a command's row and of its first SENT mark.
func (r *rig) revsOf(id string) (cmd, mark store.Rev) {
	r.t.Helper()
	kvs, err := r.store.Get(r.t.Context(), spaceHistory, cmdKey(id), sentKey(id, 0))
	if err != nil {
		r.t.Fatal(err)
	}
	return kvs[0].Rev, kvs[1].Rev
}

func TestIdleAgentIsMarkedInTheCommitOfItsCommand(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		b.leave()
		first := r.submit(to("a", "b"))
		if cmd, mark := r.revsOf(first.Id); mark != cmd {
			t.Errorf("the mark is of revision %d, the command of %d", mark, cmd)
		}
		a.wantGot(1)
		r.wantState(first.Id, "a", musterv1.Target_SENT)
		r.wantState(first.Id, "b", musterv1.Target_QUEUED)

		busy := r.submit(to("a"))
		if cmd, mark := r.revsOf(busy.Id); mark <= cmd {
			t.Errorf("an agent that has work is marked at revision %d, with its command of %d", mark, cmd)
		}
		a.wantGot(2)

		away := r.submit(to("b"))
		if _, mark := r.revsOf(away.Id); mark != 0 {
			t.Error("an agent that is away is marked")
		}
		if len(r.c.ledger.promised) != 0 {
			t.Errorf("still promised: %v", r.c.ledger.promised)
		}
	})
}

func TestAgentInMaintenanceIsNotMarked(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		r.c.fleet.setMaintenance("a", true)
		cmd := r.submit(to("a"))
		if _, mark := r.revsOf(cmd.Id); mark != 0 {
			t.Error("it is marked")
		}
		rollout := to("a")
		rollout.Rollout = &musterv1.Rollout{Batch: "1"}
		r.c.fleet.setMaintenance("a", false)
		if mark, _, _ := r.c.sentAtOnce(rollout, []string{"a"}); mark != nil {
			t.Error("a rollout is marked before it is its turn")
		}
	})
}

// Of two commands that are stored at the same time an agent is promised one: the
// other finds its place among what is in flight later.
func TestIdleAgentIsPromisedOnce(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		mark, _, done := r.c.sentAtOnce(&musterv1.Command{Id: "1"}, []string{"a"})
		again, _, doneAgain := r.c.sentAtOnce(&musterv1.Command{Id: "2"}, []string{"a"})
		if len(mark) != 1 || len(again) != 0 {
			t.Errorf("%d and %d marks, want 1 and 0", len(mark), len(again))
		}
		doneAgain()
		if len(r.c.ledger.promised) != 1 {
			t.Error("who got nothing took the promise away")
		}
		done()
	})
}

// The mark is there and nothing was sent, because the coordinator ended: it is sent
// when the agent comes.
func TestMarkedWithItsCommandAndSentAfterARestart(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		cmd := to("a")
		cmd.Id, cmd.Timeout = "01HZX3Q4N8F0V9C2T7R5K1M6AB", lasting(time.Minute)
		cmd.CreateTime, cmd.ExpireTime = timestamppb.Now(), timestamppb.New(time.Now().Add(time.Hour))
		mark, all, done := r.c.sentAtOnce(cmd, []string{"a"})
		if !all {
			t.Error("there is one target, and it is not all")
		}
		done()
		a.leave()
		r.stop()
		if _, err := r.c.storeCommand(t.Context(), cmd, []string{"a"}, nil, mark, onceKey{}); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
		b := r.peer("a").join()
		defer b.leave()
		b.wantGot(1)
		b.report(cmd.Id, musterv1.Target_SUCCEEDED)
		r.wantState(cmd.Id, "a", musterv1.Target_SUCCEEDED)
	})
}

// A command of idle agents is on its way when it is stored, not when the watch has
// come round. What the watch brings then changes nothing.
func TestSentBeforeTheWatchComesRound(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a, b, c := r.peer("a").join(), r.peer("b").join(), r.peer("c").join()
		defer a.leave()
		defer b.leave()
		c.leave()
		s.blind.Store(true)
		(*s.cut.Load())()
		synctest.Wait()
		submit := func(cmd *musterv1.Command) <-chan *musterv1.Command {
			done := make(chan *musterv1.Command, 1)
			go func() {
				cmd, err := r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: cmd})
				if err != nil {
					t.Error(err)
				}
				done <- cmd
			}()
			synctest.Wait()
			return done
		}
		both := submit(to("b", "c"))
		b.wantGot(0) // c is away, so there is more to be known than a mark says
		idle := submit(to("a"))
		a.wantGot(1)
		s.blind.Store(false)
		one, two := <-idle, <-both
		time.Sleep(5 * time.Second)
		a.wantGot(1)
		b.wantGot(1)
		a.report(one.Id, musterv1.Target_SUCCEEDED)
		b.report(two.Id, musterv1.Target_SUCCEEDED)
		if got := r.command(one.Id); got.State != musterv1.Command_DONE || got.Counts.Succeeded != 1 || got.Counts.Total != 1 {
			t.Errorf("got %v", got)
		}
		r.wantState(two.Id, "b", musterv1.Target_SUCCEEDED)
	})
}

// Who stored a command may be late, and the command over by then: it stays over.
func TestEndedCommandIsNotOpenedAtOnce(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		id := r.submit(to("a")).Id
		a.report(id, musterv1.Target_SUCCEEDED)
		a.wantAcked(id)
		rev, _ := r.revsOf(id)
		ended := r.command(id)
		if err := r.c.openAtOnce(ended, []string{"a"}, rev); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		a.wantGot(1)
		if r.c.ledger.get(id) != nil {
			t.Error("it is open again")
		}
	})
}

// What the watch has brought, or whoever reads all that is open again, is not opened
// by who stored it: it may have ended since.
func TestOpenedAtOnceOnlyBeforeOthersDo(t *testing.T) {
	l := newLedger(1)
	opened := func(rev store.Rev) bool {
		id := fmt.Sprint(rev)
		return l.addBefore(&openCommand{cmd: &musterv1.Command{Id: id}}, rev)
	}
	l.reach(5)
	l.readAt(10)
	for rev, want := range map[store.Rev]bool{4: false, 5: false, 6: false, 10: false, 11: true, 12: true} {
		if opened(rev) != want {
			t.Errorf("stored at %d: opened %v", rev, !want)
		}
	}
	l.reach(20)
	if opened(20) || !opened(21) || opened(21) {
		t.Error("it was opened after the watch, or twice, or not at all")
	}
}
