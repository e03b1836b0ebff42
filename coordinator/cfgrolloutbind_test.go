package coordinator

import (
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// TestBindingsStayDuringAConfigRollout: the end of a rollout would undo a change
// of the bindings that was acknowledged meanwhile.
func TestBindingsStayDuringAConfigRollout(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		other := r.version("app", "three")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(time.Minute)}).Id
		moved := &musterv1.Config{Name: "app", Bindings: []*musterv1.Binding{fleetWide(other)}}
		put := func(cfg *musterv1.Config, dry bool) (*musterv1.Config, error) {
			return r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: cfg, DryRun: dry})
		}
		for _, dry := range []bool{true, false} {
			_, err := put(moved, dry)
			wantReason(t, err, "ROLLOUT_IN_PROGRESS", "")
		}
		_, err := r.configs().PreviewConfig(t.Context(), &musterv1.PreviewConfigRequest{Config: moved})
		wantReason(t, err, "ROLLOUT_IN_PROGRESS", "")
		same := &musterv1.Config{Name: "app", Description: "what it is for", Bindings: []*musterv1.Binding{fleetWide(1)}}
		if got, err := put(same, false); err != nil || got.Description != same.Description || got.RolloutId != id {
			t.Errorf("its description may change: %v, %v", got, err)
		}
		if _, err := r.configs().PreviewConfig(t.Context(), &musterv1.PreviewConfigRequest{Config: same}); err != nil {
			t.Error(err)
		}
		if _, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app"}, KeepBindings: true}); err != nil {
			t.Error(err)
		}
		r.mustControl(id, "abort")
		r.wantEnded(id, time.Minute)
		if got, err := put(moved, false); err != nil || got.Bindings[0].Version != other {
			t.Errorf("afterwards: %v, %v", got, err)
		}
	})
}

// TestConfigRolloutIsOfTheBindingsItSaw: one that is started while the bindings
// are changed has the wrong targets.
func TestConfigRolloutIsOfTheBindingsItSaw(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(2, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		rs := r.c.rollouts
		seen := r.c.configs.catalog.head("app")
		row := &musterv1.ConfigRollout{Id: "01M8NHX3F10HS0QFF2JDMNC8QJ", Config: "app", Version: v, State: musterv1.ConfigRollout_RUNNING, CreateTime: r.c.nowStamp()}
		targets, err := rs.resolve(row, seen)
		if err != nil || len(targets) != 2 {
			t.Fatalf("targets %q, %v", targets, err)
		}
		r.bind("app", forAgent("p000", 1))
		wantReason(t, rs.store(t.Context(), row, seen, targets, onceKey{}), "CONFIG_CHANGED", "")
		time.Sleep(time.Minute)
		if n := offeredIn(all, v); n != 0 {
			t.Errorf("%d were reached", n)
		}
	})
}

// wantEnded waits for the end of a rollout.
func (r *rig) wantEnded(id string, within time.Duration) *musterv1.ConfigRollout {
	r.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		ro := r.rollout(id)
		if ro.EndTime != nil {
			return ro
		}
		if time.Now().After(end) {
			r.t.Fatalf("rollout is %s (%s) with %v, and has not ended", ro.State, ro.StateReason, ro.Counts)
		}
	}
}
