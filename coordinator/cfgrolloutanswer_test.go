package coordinator

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// TestConfigRolloutDoesNotWaitForTheMute: an agent that is there and says nothing
// of its offer has failed after a time, and says so.
func TestConfigRolloutDoesNotWaitForTheMute(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		setDeaf(all[:1], true)
		id := r.roll(v, &musterv1.Rollout{MaxFailures: "1"}).Id
		time.Sleep(11 * time.Minute)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_RUNNING || got.Counts.Offered != 1 {
			t.Fatalf("it may still be fetching: %v", got)
		}
		got := r.wantRollout(id, musterv1.ConfigRollout_DONE, 2*time.Minute)
		if failed := r.failedIn(id); got.Counts.Failed != 1 || got.Counts.Applied != 2 || len(failed) != 1 || !strings.Contains(failed[0].Reason, "did not answer") {
			t.Errorf("got %v, %v", got, failed)
		}
	})
}

// TestConfigRolloutGivesTimeToWhoComesBack: only time in which an agent is there
// is held against it, and what it says in the end counts.
func TestConfigRolloutGivesTimeToWhoComesBack(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(2, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		setDeaf(all[:1], true)
		id := r.roll(v, &musterv1.Rollout{VanishAfter: lasting(time.Hour)}).Id
		time.Sleep(11 * time.Minute)
		all[0].leave()
		time.Sleep(2 * time.Second)
		if got := r.rollout(id); got.StateReason != "waiting for 1 agent, p000: it is SUSPECT" {
			t.Errorf("it waits, and says %q", got.StateReason)
		}
		time.Sleep(4 * time.Minute)
		all[0].come()
		time.Sleep(11 * time.Minute)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_RUNNING || got.Counts.Offered != 1 {
			t.Fatalf("got %v", got)
		}
		a := all[0]
		a.mu.Lock()
		a.sayLocked(a.link, file("app"), v, musterv1.ConfigStatus_APPLYING, "")
		a.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if got := r.rollout(id); got.Counts.Offered != 1 {
			t.Fatalf("it has just begun: %v", got)
		}
		a.mu.Lock()
		a.sayLocked(a.link, file("app"), v, musterv1.ConfigStatus_APPLIED, "")
		a.mu.Unlock()
		r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
	})
}

// TestEventsTellWhatAConfigRolloutWaitsFor: although no count changes.
func TestEventsTellWhatAConfigRolloutWaitsFor(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		w := r.watch("", "rollout")
		all := r.takers(2, nil)
		defer leaveTakers(all)
		all[1].leave()
		r.roll(r.version("app", "two"), nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		var last string
		for _, e := range w.got {
			last = e.Rollout.StateReason
		}
		if !strings.Contains(last, "p001: it is SUSPECT") {
			t.Errorf("the last event says %q", last)
		}
		w.stop()
	})
}
