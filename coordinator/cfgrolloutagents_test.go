package coordinator

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// TestOfflineAgentsDoNotHoldAConfigRolloutUp: once the canary is through they are
// left to the bindings.
func TestOfflineAgentsDoNotHoldAConfigRolloutUp(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(5, nil)
		v := r.version("app", "two")
		leaveTakers(all[1:])
		time.Sleep(10 * time.Minute)
		id := r.roll(v, &musterv1.Rollout{Canary: "2"}).Id
		time.Sleep(time.Hour)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_RUNNING || got.Counts.Applied != 1 || got.Counts.Waiting != 4 {
			t.Fatalf("half the canary is through: %v", got)
		}
		all[1].come()
		got := r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
		if got.Counts.Applied != 2 || got.Counts.Skipped != 3 || got.Counts.Waiting != 0 {
			t.Errorf("got %v", got)
		}
		all[2].come()
		all[2].wantFile(file("app"), "two")
		skipped := &musterv1.ListRolloutTargetsRequest{Id: id, States: []musterv1.RolloutTarget_State{musterv1.RolloutTarget_SKIPPED}}
		page, err := r.rolls().ListRolloutTargets(t.Context(), skipped)
		if err != nil || len(page.Targets) != 3 || page.Targets[0].Reason != "it runs version 2 by now" || !strings.Contains(page.Targets[1].Reason, "when it comes") {
			t.Errorf("those that were not reached: %v, %v", page, err)
		}
		leaveTakers(all[:3])
	})
}

// TestAgentLostAfterItAppliedAConfigCounts: it may well be lost of it.
func TestAgentLostAfterItAppliedAConfigCounts(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(4, nil)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(10 * time.Minute)}).Id
		all[0].wantFile(file("app"), "two")
		time.Sleep(10 * time.Second)
		all[0].leave()
		got := r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, 5*time.Minute)
		if n := offeredIn(all, v); n != 1 || got.Counts.Vanished != 1 {
			t.Errorf("%d were reached: %v", n, got)
		}
		all[0].come()
		all[0].wantFile(file("app"), "one")
		leaveTakers(all)
	})
}

func TestAgentThatComesBackInTimeHasNotVanished(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(2, nil)
		setDeaf(all, true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", VanishAfter: lasting(2 * time.Minute)}).Id
		all[0].leave()
		time.Sleep(100 * time.Second)
		setDeaf(all, false)
		all[0].come()
		got := r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
		if got.Counts.Applied != 2 {
			t.Errorf("got %v", got)
		}
		leaveTakers(all)
	})
}

// retag registers once more with other tags.
func (a *taker) retag(tags ...string) {
	a.tag(tags...)
	a.mu.Lock()
	a.reg.Configs = slices.Collect(maps.Values(a.says))
	a.mu.Unlock()
	a.again()
	settle()
}

// TestN33N34GroupsChangeDuringAConfigRollout: an agent that leaves loses the
// config and counts no more; one that joins has what the binding says, and the
// new version at the end.
func TestN33N34GroupsChangeDuringAConfigRollout(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		one := r.version("app", "one")
		r.group("prod", `"env" in tags`)
		r.group("test", "", "aside")
		r.bind("app", forGroup("prod", one), forGroup("test", one))
		var all []*taker
		for _, id := range []string{"a", "b", "c", "aside"} {
			p := r.taker(id)
			if id != "aside" {
				p.tag("env=prod")
			}
			all = append(all, p.come())
		}
		joins := r.taker("joins").come()
		two := r.version("app", "two")
		setDeaf(all[1:2], true)
		ro, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{
			Config: "app", Version: two, Groups: []string{"prod"}, Plan: &musterv1.Rollout{Batch: "2"}}})
		if err != nil || ro.Counts.Total != 3 {
			t.Fatalf("got %v, %v", ro, err)
		}
		settle()
		all[0].wantFile(file("app"), "two")
		all[0].retag() // leaves although the rollout has reached it
		all[0].wantNoFile(file("app"))
		joins.retag("env=prod")
		joins.wantFile(file("app"), "one")
		time.Sleep(20 * time.Second)
		if got := r.rollout(ro.Id); got.Counts.Total != 2 || got.State != musterv1.ConfigRollout_RUNNING {
			t.Errorf("got %v", got)
		}
		setDeaf(all, false)
		r.wantRollout(ro.Id, musterv1.ConfigRollout_DONE, 2*time.Minute)
		settle()
		joins.wantFile(file("app"), "two")
		all[3].wantFile(file("app"), "one")
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Bindings[0].Version != two || cfg.Bindings[1].Version != one {
			t.Errorf("bindings: %v, %v", cfg, err)
		}
		leaveTakers(append(all, joins))
	})
}

// TestInstanceConfigIsRolledOut: where its document stands is where it stands.
func TestInstanceConfigIsRolledOut(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"a":1}`)))
		r.head(musterv1.Config_INSTANCE, "app")
		r.bind("app", fleetWide(r.version("app", `{"b":1}`)))
		var all []*taker
		for _, id := range []string{"x", "y", "z"} {
			all = append(all, r.taker(id).come())
		}
		good := r.roll(r.version("app", `{"b":2}`), &musterv1.Rollout{Canary: "1"}).Id
		if got := r.wantRollout(good, musterv1.ConfigRollout_DONE, time.Minute); got.Counts.Applied != 3 {
			t.Errorf("got %v", got)
		}
		all[1].wantFile(instance, "{\n  \"a\": 1,\n  \"b\": 2\n}\n")
		for _, a := range all {
			a.mu.Lock()
			a.judge = func(m *musterv1.ConfigOffer) string {
				if slices.Contains(m.Content, '3') {
					return "no threes"
				}
				return ""
			}
			a.mu.Unlock()
		}
		bad := r.roll(r.version("app", `{"b":3}`), &musterv1.Rollout{Canary: "1"}).Id
		if got := r.wantRollout(bad, musterv1.ConfigRollout_ROLLED_BACK, time.Minute); len(r.failedIn(bad)) != 1 || got.Counts.RolledBack != 1 {
			t.Errorf("got %v", got)
		}
		all[0].wantFile(instance, "{\n  \"a\": 1,\n  \"b\": 2\n}\n")
		leaveTakers(all)
	})
}

// TestRolloutsLeaveNoRows: of one that has ended its head and its outcome stay,
// of the oldest nothing; and every row is one that CheckRow knows.
func TestRolloutsLeaveNoRows(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(2, nil)
		defer leaveTakers(all)
		id := r.roll(1, nil).Id
		r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
		time.Sleep(2 * time.Second)
		for _, space := range []store.Space{spaceConfig, spaceBulk} {
			for _, k := range r.keys(space) {
				if strings.HasPrefix(k, offeredPrefix) || strings.HasPrefix(k, targetsPrefix) {
					t.Errorf("row %s is left", k)
				}
			}
			err := r.c.each(t.Context(), space, "", func(kv store.KV) error {
				if err := CheckRow(space, kv.Key, kv.Value); err != nil {
					t.Errorf("row %q: %v", kv.Key, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for range keptRollouts {
			next, err := r.c.ids.next(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			old := &musterv1.ConfigRollout{Id: next, Config: "app", State: musterv1.ConfigRollout_DONE, EndTime: r.c.nowStamp()}
			if _, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{putRollout(old)}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		_, err := r.rolls().GetConfigRollout(t.Context(), &musterv1.GetConfigRolloutRequest{Id: id})
		wantReason(t, err, "NOT_FOUND", "")
		if kvs, err := r.store.Get(t.Context(), spaceBulk, outcomeKey(id, 0)); err != nil || kvs[0].Rev != 0 {
			t.Errorf("its outcome is left: %v", err)
		}
	})
}
