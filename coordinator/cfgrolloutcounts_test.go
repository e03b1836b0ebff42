package coordinator

import (
	"strings"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// failedIn are the targets of a rollout that failed, also if they went back.
func (r *rig) failedIn(id string) []*musterv1.RolloutTarget {
	r.t.Helper()
	page, err := r.rolls().ListRolloutTargets(r.t.Context(), &musterv1.ListRolloutTargetsRequest{Id: id, States: []musterv1.RolloutTarget_State{musterv1.RolloutTarget_FAILED}})
	if err != nil {
		r.t.Fatal(err)
	}
	return page.Targets
}

// TestConfigRolloutCountsAddUp: each target is counted once, in whatever state.
func TestConfigRolloutCountsAddUp(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(6, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		all[2].judge = badVersion(v)
		id := r.roll(v, &musterv1.Rollout{Batch: "1"}).Id
		for {
			ro := r.rollout(id)
			c := ro.Counts
			if c.Waiting+c.Offered+c.Applied+c.Failed+c.Vanished+c.RolledBack+c.Skipped != c.Total || c.Total != 6 {
				t.Fatalf("the counts do not add up: %v", ro)
			}
			if ro.EndTime != nil {
				if c.RolledBack != 3 || c.Skipped != 3 {
					t.Errorf("got %v", ro)
				}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// TestConfigRolloutThatNobodyAppliedIsNotDone: the bindings name no version that
// has failed everywhere, however often that is forgiven.
func TestConfigRolloutThatNobodyAppliedIsNotDone(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, badVersion(2))
		defer leaveTakers(all)
		v := r.version("app", "two")
		ro, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{
			Rollout: &musterv1.ConfigRollout{Config: "app", Version: v, KeepOnHalt: true}})
		if err != nil {
			t.Fatal(err)
		}
		r.wantRollout(ro.Id, musterv1.ConfigRollout_HALTED, time.Minute)
		r.mustControl(ro.Id, "resume")
		time.Sleep(time.Minute)
		if got := r.rollout(ro.Id); got.State != musterv1.ConfigRollout_HALTED || !strings.Contains(got.StateReason, "none of 3") || !strings.Contains(got.StateReason, "told to") {
			t.Fatalf("resumed, it is %v", got)
		}
		r.mustControl(ro.Id, "abort")
		r.wantEnded(ro.Id, time.Minute)
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Bindings[0].Version != 1 {
			t.Errorf("got %v, %v", cfg, err)
		}
		allowed := r.roll(v, &musterv1.Rollout{MaxFailures: "100%"}).Id
		r.wantRollout(allowed, musterv1.ConfigRollout_ROLLED_BACK, time.Minute)
	})
}
