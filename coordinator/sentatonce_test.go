package coordinator

import (
	"testing"
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
		if mark, _ := r.c.sentAtOnce(rollout, []string{"a"}); mark != nil {
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
		mark, done := r.c.sentAtOnce(&musterv1.Command{Id: "1"}, []string{"a"})
		again, doneAgain := r.c.sentAtOnce(&musterv1.Command{Id: "2"}, []string{"a"})
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
		mark, done := r.c.sentAtOnce(cmd, []string{"a"})
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
