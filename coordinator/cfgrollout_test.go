package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) rolls() *configRolloutService {
	return &configRolloutService{c: r.c, quit: make(chan struct{})}
}

// roll starts a rollout of a version of "app".
func (r *rig) roll(version int32, plan *musterv1.Rollout) *musterv1.ConfigRollout {
	r.t.Helper()
	ro, err := r.rolls().CreateConfigRollout(r.t.Context(), &musterv1.CreateConfigRolloutRequest{
		Rollout: &musterv1.ConfigRollout{Config: "app", Version: version, Plan: plan}})
	if err != nil {
		r.t.Fatal(err)
	}
	settle()
	return ro
}

func (r *rig) rollout(id string) *musterv1.ConfigRollout {
	r.t.Helper()
	synctest.Wait()
	ro, err := r.rolls().GetConfigRollout(r.t.Context(), &musterv1.GetConfigRolloutRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return ro
}

// wantRollout waits until a rollout is in a state.
func (r *rig) wantRollout(id string, want musterv1.ConfigRollout_State, within time.Duration) *musterv1.ConfigRollout {
	r.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		ro := r.rollout(id)
		if ro.State == want {
			return ro
		}
		if time.Now().After(end) {
			r.t.Fatalf("rollout is %s (%s) with %v, want %s", ro.State, ro.StateReason, ro.Counts, want)
		}
	}
}

// takers are n agents with version 1 of "app", which the fleet is bound to; judge
// says what each makes of an offer.
func (r *rig) takers(n int, judge func(*musterv1.ConfigOffer) string) (all []*taker) {
	r.t.Helper()
	r.pipeline("app", "one")
	for i := range n {
		a := r.taker(fmt.Sprintf("p%03d", i))
		a.judge = judge
		all = append(all, a)
		a.come()
	}
	return all
}

func leaveTakers(all []*taker) {
	for _, a := range all {
		a.leave()
	}
}

// offeredIn counts the takers that were ever offered a version of "app".
func offeredIn(all []*taker, version int32) (n int) {
	for _, a := range all {
		if slices.Contains(a.got(file("app")), version) {
			n++
		}
	}
	return n
}

// runs counts the takers that hold this content of "app".
func runs(all []*taker, content string) (n int) {
	for _, a := range all {
		a.mu.Lock()
		if string(a.files[file("app")]) == content {
			n++
		}
		a.mu.Unlock()
	}
	return n
}

// setDeaf has takers answer no offer, or answer again.
func setDeaf(all []*taker, on bool) {
	for _, a := range all {
		a.mu.Lock()
		a.deaf = on
		a.mu.Unlock()
	}
}

// badVersion fails one version.
func badVersion(version int32) func(*musterv1.ConfigOffer) string {
	return func(m *musterv1.ConfigOffer) string {
		if m.Version == version {
			return "told to"
		}
		return ""
	}
}

func TestConfigRolloutGoesCanaryFirstThenAll(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(20, nil)
		defer leaveTakers(all)
		setDeaf(all, true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "2", Batch: "25%"}).Id
		time.Sleep(10 * time.Second)
		if n := offeredIn(all, v); n != 2 {
			t.Fatalf("the canary went to %d, want 2", n)
		}
		if got := r.rollout(id); got.Counts.Offered != 2 || got.Counts.Waiting != 18 || got.State != musterv1.ConfigRollout_RUNNING {
			t.Errorf("got %v", got)
		}
		setDeaf(all, false)
		got := r.wantRollout(id, musterv1.ConfigRollout_DONE, 5*time.Minute)
		if got.Counts.Applied != 20 || got.EndTime == nil || runs(all, "two") != 20 {
			t.Errorf("got %v, and %d run it", got, runs(all, "two"))
		}
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Bindings[0].Version != v || cfg.RolloutId != "" {
			t.Errorf("the bindings have moved: %v, %v", cfg, err)
		}
		late := r.taker("late").come()
		late.wantFile(file("app"), "two")
		late.leave()
	})
}

func TestConfigRolloutKeepsItsWindow(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(20, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "3", PauseBetween: lasting(10 * time.Second)}).Id
		for n := 3; n < 20; n += 3 {
			if got := offeredIn(all, v); got != n {
				t.Fatalf("%d were reached, want %d", got, n)
			}
			time.Sleep(9 * time.Second)
			if got := offeredIn(all, v); got != n {
				t.Fatalf("%d were reached before the pause was over, want %d", got, n)
			}
			time.Sleep(1*time.Second + 200*time.Millisecond)
		}
		r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
	})
}

func TestBadConfigVersionTouchesTheCanaryOnly(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		w := r.watch("", "rollout")
		all := r.takers(50, badVersion(2))
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "5", Batch: "10%"}).Id
		got := r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, time.Minute)
		n := uint32(offeredIn(all, v)) // 5, unless the first has failed before the last was told
		if c := got.Counts; n < 1 || n > 5 || c.Skipped != 45 || c.RolledBack != 5 || c.Total != c.Skipped+c.RolledBack {
			t.Errorf("%d were touched: %v", n, got)
		}
		time.Sleep(time.Hour)
		if later := uint32(offeredIn(all, v)); later != n || runs(all, "one") != 50 {
			t.Errorf("later %d were touched, %d run the old version", later, runs(all, "one"))
		}
		for _, a := range all[:5] {
			r.wantConfig("app", a.reg.AgentId, musterv1.ConfigStatus_APPLIED, 1, 1)
		}
		page, err := r.rolls().ListRolloutTargets(t.Context(), &musterv1.ListRolloutTargetsRequest{Id: id, States: []musterv1.RolloutTarget_State{musterv1.RolloutTarget_FAILED}})
		if err != nil || len(page.Targets) != int(n) || page.Targets[0].Reason != "told to" || page.Targets[0].PreviousVersion != 1 || !page.Targets[0].RolledBack {
			t.Errorf("targets: %v, %v", page, err)
		}
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Bindings[0].Version != 1 || cfg.RolloutId != "" {
			t.Errorf("the bindings stay: %v, %v", cfg, err)
		}
		var states []string
		for _, e := range w.got {
			if s := e.Rollout.State.String(); !slices.Contains(states, s) {
				states = append(states, s)
			}
		}
		if want := []string{"RUNNING", "HALTED", "ROLLED_BACK"}; !slices.Equal(states, want) {
			t.Errorf("events told %q, want %q", states, want)
		}
		w.stop()
	})
}

func TestConfigThatKillsItsAgentsTouchesTheCanaryOnly(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(20, nil)
		v := r.version("app", "two")
		setDeaf(all, true)
		id := r.roll(v, &musterv1.Rollout{Canary: "5", Batch: "5"}).Id
		for _, a := range all[:5] {
			a.leave()
		}
		got := r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, 10*time.Minute)
		if n := offeredIn(all, v); n != 5 || got.Counts.Vanished != 5 {
			t.Errorf("%d were touched: %v", n, got)
		}
		setDeaf(all, false)
		for _, a := range all[:5] { // they come back from the dead, and say nothing
			a.come()
			a.wantFile(file("app"), "one")
		}
		time.Sleep(time.Hour)
		if n := offeredIn(all, v); n != 5 || runs(all, "one") != 20 {
			t.Errorf("later %d were touched, %d run the old version", n, runs(all, "one"))
		}
		leaveTakers(all)
	})
}
