package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// TestConfigStatusSaysWhoIsAway: why nothing is heard of what is wanted, and that
// an agent that has nothing to do with the config any more is told of only when
// it is asked for.
func TestConfigStatusSaysWhoIsAway(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		defer leaveTakers(all[1:])
		all[0].leave()
		time.Sleep(time.Second)
		if st := r.statusOf("app", "p000"); st.Reason != "" {
			t.Errorf("it runs what is wanted: %v", st)
		}
		r.bind("app", fleetWide(r.version("app", "two")))
		if st := r.statusOf("app", "p000"); st.Reason != "the agent is SUSPECT" {
			t.Errorf("got %v", st)
		}
		time.Sleep(time.Hour)
		for _, st := range []*musterv1.ConfigStatus{r.statusOf("app", "p000"), r.agentConfigs("p000").Configs[0]} {
			if st.Reason != "the agent is OFFLINE" || st.RunningVersion != 1 || st.WantedVersion != 2 {
				t.Errorf("got %v", st)
			}
		}
		if st := r.statusOf("app", "p001"); st.Reason != "" {
			t.Errorf("got %v", st)
		}

		r.bind("app", forAgent("p001", 2))
		resp, err := r.configs().ListConfigStatus(t.Context(), &musterv1.ListConfigStatusRequest{Config: "app"})
		if err != nil || len(resp.Statuses) != 2 || resp.Statuses[0].AgentId != "p000" || resp.Statuses[1].AgentId != "p001" {
			t.Errorf("p002 has it no more: %v, %v", resp, err)
		}
		r.wantConfig("app", "p002", deleted, deletedVersion, 0)
	})
}

// TestGroupPreviewNamesLeaversAndConfigs: who changes a group may take files away.
func TestGroupPreviewNamesLeaversAndConfigs(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range maxNamed + 5 {
			ids = append(ids, fmt.Sprintf("n%03d", i))
			r.peer(ids[i]).join()
		}
		g := &musterv1.Group{Name: "web", Agents: ids}
		s := &groupService{c: r.c}
		if _, err := s.PutGroup(t.Context(), &musterv1.PutGroupRequest{Group: g}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"b", "a"} {
			r.head(musterv1.Config_PIPELINE, name)
			r.bind(name, forGroup("web", r.version(name, name)))
		}
		r.pipeline("c", "for all")
		preview := func(g *musterv1.Group) *musterv1.PreviewGroupResponse {
			t.Helper()
			resp, err := s.PreviewGroup(t.Context(), &musterv1.PreviewGroupRequest{Group: g})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		got := preview(&musterv1.Group{Name: "web", Agents: ids[2:]})
		if got.Leaving != 2 || !slices.Equal(got.LeavingIds, ids[:2]) || !slices.Equal(got.Configs, []string{"a", "b"}) {
			t.Errorf("got %d leavers %q, configs %q", got.Leaving, got.LeavingIds, got.Configs)
		}
		got = preview(&musterv1.Group{Name: "web"})
		if int(got.Leaving) != len(ids) || !slices.Equal(got.LeavingIds, ids[:maxNamed]) {
			t.Errorf("got %d leavers, %d named", got.Leaving, len(got.LeavingIds))
		}
		if got = preview(&musterv1.Group{Name: "new"}); len(got.Configs) != 0 || got.Leaving != 0 {
			t.Errorf("got %v", got)
		}
	})
}

// TestAgentShowsWhetherItRunsHooks: without them a config that has some fails.
func TestAgentShowsWhetherItRunsHooks(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a")
		shows := func() bool {
			t.Helper()
			got, err := (&agentService{c: r.c}).GetAgent(t.Context(), &musterv1.GetAgentRequest{Id: "a"})
			if err != nil {
				t.Fatal(err)
			}
			return got.Hooks
		}
		a.come()
		if shows() {
			t.Error("it runs no hooks")
		}
		a.leave()
		a.reg.Capabilities |= uint64(musterv1.AgentCapability_RUNS_HOOKS)
		a.come()
		if !shows() {
			t.Error("it runs hooks")
		}
		a.leave()
	})
}
