package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent may run a version that is removed by now. It cannot be offered again,
// so a rollout that goes back gives the agent what the bindings say.
func TestConfigRolloutGoesBackWhenThePreviousVersionIsRemoved(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		last := int32(keptVersions + 13)
		all := r.takers(2, func(m *musterv1.ConfigOffer) string {
			if m.Version > 1 && m.Version < last-1 { // by which its binding is left at a version it does not run
				return "told to"
			}
			return ""
		})
		defer leaveTakers(all)
		var bound int32
		for n := range int(last) - 3 {
			bound = r.version("app", fmt.Sprint("version ", n))
		}
		r.bind("app", fleetWide(bound))
		time.Sleep(2 * tidyEvery)
		r.wantConfig("app", "p000", musterv1.ConfigStatus_FAILED, bound, 1)
		if r.c.configs.catalog.has("app", 1) {
			t.Fatal("version 1 is to be removed")
		}
		r.c.configs.offers.mu.Lock()
		r.c.configs.offers.made, r.c.configs.offers.order, r.c.configs.offers.bytes = map[offerKey]*offering{}, nil, 0 // as after a restart
		r.c.configs.offers.mu.Unlock()
		v := r.version("app", "last but one")
		id := r.roll(v, &musterv1.Rollout{Canary: "1", PauseBetween: lasting(time.Hour)}).Id
		r.wantConfig("app", "p000", musterv1.ConfigStatus_APPLIED, v, v)
		r.mustControl(id, "abort")
		time.Sleep(time.Minute)
		if got := r.rollout(id); got.EndTime == nil {
			t.Errorf("it waits for an agent to run what is not there: %v", got)
		}
		if got := all[0].got(file("app")); got[len(got)-1] != bound {
			t.Errorf("it was offered %v, want %d in the end", got, bound)
		}
	})
}

// What an agent says it runs may be a lie: it is not offered a version that there
// never was, and keeps no rollout from its end.
func TestConfigRolloutTakesNoImpossiblePreviousVersion(t *testing.T) {
	for _, lie := range []int32{-1, -7, 5, 1 << 30} {
		fleetTest(t, func(t *testing.T, r *rig) {
			all := r.takers(1, nil)
			all[0].leave()
			all[0].deaf = true
			all[0].says[file("app")].Version, all[0].says[file("app")].RunningVersion = lie, lie
			all[0].come()
			defer leaveTakers(all)
			v := r.version("app", "two")
			id := r.roll(v, nil).Id
			r.mustControl(id, "abort")
			time.Sleep(time.Minute)
			page, err := r.rolls().ListRolloutTargets(t.Context(), &musterv1.ListRolloutTargetsRequest{Id: id})
			if err != nil || len(page.Targets) != 1 || page.Targets[0].PreviousVersion != 0 {
				t.Errorf("said to run %d: %v, %v", lie, page, err)
			}
			for _, n := range all[0].got(file("app")) {
				if n != 1 && n != v {
					t.Errorf("it was offered version %d", n)
				}
			}
		})
	}
}

// A rollout that waits says for whom, and why.
func TestConfigRolloutSaysWhatItWaitsFor(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		all[1].leave()
		all[2].leave()
		time.Sleep(time.Hour)
		wantReason := func(id string, words ...string) {
			t.Helper()
			got := r.rollout(id)
			for _, w := range words {
				if got.State != musterv1.ConfigRollout_RUNNING || !strings.Contains(got.StateReason, w) {
					t.Errorf("it waits and says %q, want %q in it: %v", got.StateReason, w, got)
				}
			}
		}
		setDeaf(all, true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "1"}).Id
		if got := r.rollout(id); got.StateReason != "" {
			t.Errorf("it has only begun, and says %q", got.StateReason)
		}
		time.Sleep(10 * time.Minute)
		wantReason(id, "1 agent", "p000", "not answered")
		all[0].say(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{{
			Kind: musterv1.Config_PIPELINE, Name: "app", Version: v, Status: musterv1.ConfigStatus_UNSET, Reason: "removed on the host"}}})
		time.Sleep(2 * time.Second)
		wantReason(id, "p000", "UNSET", "removed on the host")

		all[0].leave()
		time.Sleep(time.Hour)
		v = r.version("app", "three")
		id = r.roll(v, &musterv1.Rollout{Canary: "1"}).Id
		time.Sleep(time.Minute)
		wantReason(id, "3 agents", "p000", "OFFLINE")

		for _, a := range all {
			if err := r.delete(a.reg.AgentId); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_DONE || !strings.Contains(got.StateReason, "no agent") {
			t.Errorf("nobody is left: %v", got)
		}
	})
}
