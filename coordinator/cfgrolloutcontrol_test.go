package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) controlRollout(id, what string) (*musterv1.ConfigRollout, error) {
	req := &musterv1.ControlConfigRolloutRequest{Id: id}
	switch what {
	case "pause":
		return r.rolls().PauseConfigRollout(r.t.Context(), req)
	case "resume":
		return r.rolls().ResumeConfigRollout(r.t.Context(), req)
	default:
		return r.rolls().AbortConfigRollout(r.t.Context(), req)
	}
}

func (r *rig) mustControl(id, what string) *musterv1.ConfigRollout {
	r.t.Helper()
	ro, err := r.controlRollout(id, what)
	if err != nil {
		r.t.Fatal(err)
	}
	settle()
	return ro
}

func TestPausedConfigRolloutReachesNobody(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(6, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(time.Minute)}).Id
		if got := r.mustControl(id, "pause"); got.State != musterv1.ConfigRollout_PAUSED || got.StateReason != "paused" {
			t.Errorf("got %v", got)
		}
		r.mustControl(id, "pause") // asked twice: the answer is the same
		time.Sleep(time.Hour)
		if n := offeredIn(all, v); n != 1 {
			t.Errorf("%d were reached while it was paused, want 1", n)
		}
		all[0].wantFile(file("app"), "two") // it keeps what it has
		r.mustControl(id, "resume")
		got := r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Hour)
		if got.Counts.Applied != 6 {
			t.Errorf("got %v", got)
		}
		for _, what := range []string{"pause", "resume", "abort"} {
			_, err := r.controlRollout(id, what)
			wantReason(t, err, "ROLLOUT_ENDED", "")
		}
	})
}

func TestAbortedConfigRolloutGoesBack(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(6, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "2", PauseBetween: lasting(time.Hour)}).Id
		if n := runs(all, "two"); n != 2 {
			t.Fatalf("%d run it, want 2", n)
		}
		r.mustControl(id, "abort")
		got := r.wantEnded(id, time.Minute)
		if got.State != musterv1.ConfigRollout_ABORTED || got.Counts.Applied != 0 || got.Counts.RolledBack != 2 || got.Counts.Skipped != 4 {
			t.Errorf("got %v", got)
		}
		if n := runs(all, "one"); n != 6 || offeredIn(all, v) != 2 {
			t.Errorf("%d run the old version, %d were reached", n, offeredIn(all, v))
		}
	})
}

// TestResumedConfigRolloutForgives goes on after a halt: those that failed are
// offered the version again, and the failures so far are forgiven.
func TestResumedConfigRolloutForgives(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(10, badVersion(2))
		defer leaveTakers(all)
		v := r.version("app", "two")
		ro, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{
			Config: "app", Version: v, Plan: &musterv1.Rollout{Canary: "2", Batch: "2"}, KeepOnHalt: true}})
		if err != nil {
			t.Fatal(err)
		}
		r.wantRollout(ro.Id, musterv1.ConfigRollout_HALTED, time.Minute)
		time.Sleep(time.Hour)
		if got := r.rollout(ro.Id); got.State != musterv1.ConfigRollout_HALTED || got.EndTime != nil || got.Counts.Failed != 2 {
			t.Fatalf("told to stay as it is, it is %v", got)
		}
		r.wantConfig("app", "p000", musterv1.ConfigStatus_FAILED, 2, 1)
		_, err = r.controlRollout(ro.Id, "pause")
		wantReason(t, err, "ROLLOUT_HALTED", "")
		for _, a := range all {
			a.mu.Lock()
			a.judge = nil
			a.mu.Unlock()
		}
		r.mustControl(ro.Id, "resume")
		got := r.wantRollout(ro.Id, musterv1.ConfigRollout_DONE, time.Minute)
		if got.Counts.Applied != 8 || got.Counts.Failed != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// TestC091ConfigRolloutsSucceedEachOther: of versions that follow each other fast
// the last one is there in the end, the others are shown as superseded, and going
// back is a change like any other.
func TestC091ConfigRolloutsSucceedEachOther(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(4, nil)
		defer leaveTakers(all)
		var ids []string
		for n := range 20 {
			v := r.version("app", fmt.Sprintf("version %d", n+2))
			ro, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{
				Rollout: &musterv1.ConfigRollout{Config: "app", Version: v, Plan: &musterv1.Rollout{Batch: "1"}}})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, ro.Id)
			time.Sleep(20 * time.Millisecond)
		}
		r.wantRollout(ids[19], musterv1.ConfigRollout_DONE, time.Minute)
		for _, a := range all {
			a.wantFile(file("app"), "version 21")
			r.wantConfig("app", a.reg.AgentId, musterv1.ConfigStatus_APPLIED, 21, 21)
		}
		for _, id := range ids[:19] {
			got := r.rollout(id)
			if got.State != musterv1.ConfigRollout_SUPERSEDED || got.EndTime == nil || got.Counts.Applied == 4 || !strings.Contains(got.StateReason, "version") {
				t.Errorf("got %v", got)
			}
		}
		back := r.roll(5, nil).Id
		r.wantRollout(back, musterv1.ConfigRollout_DONE, time.Minute)
		settle()
		for _, a := range all {
			a.wantFile(file("app"), "version 5")
			r.wantConfig("app", a.reg.AgentId, musterv1.ConfigStatus_APPLIED, 5, 5)
		}
	})
}

func TestC099OneKeyOneConfigRollout(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(1, nil)
		defer leaveTakers(all)
		create := func(key string, version int32) (*musterv1.ConfigRollout, error) {
			return r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{
				Rollout: &musterv1.ConfigRollout{Config: "app", Version: version}, IdempotencyKey: key})
		}
		first, err := create("k", 1)
		if err != nil {
			t.Fatal(err)
		}
		r.wantRollout(first.Id, musterv1.ConfigRollout_DONE, time.Minute)
		if again, err := create("k", 1); err != nil || again.Id != first.Id || again.State != musterv1.ConfigRollout_DONE {
			t.Errorf("the same again: %v, %v", again, err)
		}
		r.version("app", "two")
		_, err = create("k", 2)
		wantReason(t, err, "IDEMPOTENCY_KEY_REUSED", "")
		if other, err := create("", 1); err != nil || other.Id == first.Id {
			t.Errorf("without a key: %v, %v", other, err)
		}
	})
}

func TestConfigRolloutRefuses(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(2, nil)
		defer leaveTakers(all)
		r.head(musterv1.Config_PIPELINE, "loose")
		r.version("loose", "x")
		r.group("g", "true")
		ok := &musterv1.ConfigRollout{Config: "app", Version: 1}
		for _, bad := range []struct {
			change        func(*musterv1.ConfigRollout)
			reason, field string
		}{
			{func(m *musterv1.ConfigRollout) { m.Config = "" }, "INVALID_FIELD", "config"},
			{func(m *musterv1.ConfigRollout) { m.Config = "../x" }, "INVALID_FIELD", "config"},
			{func(m *musterv1.ConfigRollout) { m.Config = "unknown" }, "NOT_FOUND", ""},
			{func(m *musterv1.ConfigRollout) { m.Config = "loose" }, "INVALID_FIELD", "config"},
			{func(m *musterv1.ConfigRollout) { m.Version = 0 }, "INVALID_FIELD", "version"},
			{func(m *musterv1.ConfigRollout) { m.Version = -1 }, "INVALID_FIELD", "version"},
			{func(m *musterv1.ConfigRollout) { m.Version = 2 }, "INVALID_FIELD", "version"},
			{func(m *musterv1.ConfigRollout) { m.Groups = []string{"g"} }, "INVALID_FIELD", "groups[0]"},
			{func(m *musterv1.ConfigRollout) { m.Note = strings.Repeat("n", maxNote+1) }, "INVALID_FIELD", "note"},
			{func(m *musterv1.ConfigRollout) { m.Id = "x" }, "INVALID_FIELD", "rollout"},
			{func(m *musterv1.ConfigRollout) { m.Forgiven = 9 }, "INVALID_FIELD", "rollout"},
			{func(m *musterv1.ConfigRollout) { m.Plan = &musterv1.Rollout{Canary: "many"} }, "INVALID_FIELD", "plan.canary"},
			{func(m *musterv1.ConfigRollout) { m.Plan = &musterv1.Rollout{Batch: "0"} }, "INVALID_FIELD", "plan.batch"},
			{func(m *musterv1.ConfigRollout) { m.Plan = &musterv1.Rollout{MaxFailures: "101%"} }, "INVALID_FIELD", "plan.max_failures"},
			{func(m *musterv1.ConfigRollout) { m.Plan = &musterv1.Rollout{PauseBetween: lasting(-time.Second)} }, "INVALID_FIELD", "plan.pause_between"},
			{func(m *musterv1.ConfigRollout) { m.Plan = &musterv1.Rollout{VanishAfter: lasting(0)} }, "INVALID_FIELD", "plan.vanish_after"},
		} {
			m := proto.CloneOf(ok)
			bad.change(m)
			_, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: m})
			wantReason(t, err, bad.reason, bad.field)
		}
		_, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{})
		wantReason(t, err, "INVALID_FIELD", "rollout")
		for _, id := range []string{"", "x", "01M8NHX3F10HS0QFF2JDMNC8QJ"} {
			_, err := r.rolls().GetConfigRollout(t.Context(), &musterv1.GetConfigRolloutRequest{Id: id})
			wantReason(t, err, "NOT_FOUND", "")
			_, err = r.rolls().ListRolloutTargets(t.Context(), &musterv1.ListRolloutTargetsRequest{Id: id})
			wantReason(t, err, "NOT_FOUND", "")
			_, err = r.controlRollout(id, "abort")
			wantReason(t, err, "NOT_FOUND", "")
		}
		dry, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: ok, DryRun: true})
		if err != nil || dry.Id != "" || dry.Counts.Total != 2 {
			t.Errorf("dry run: %v, %v", dry, err)
		}
		page, err := r.rolls().ListConfigRollouts(t.Context(), &musterv1.ListConfigRolloutsRequest{})
		if err != nil || len(page.Rollouts) != 0 {
			t.Errorf("there are %v, %v", page, err)
		}
	})
}

func TestListConfigRolloutsByPages(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		defer leaveTakers(all)
		r.pipeline("other", "x")
		var want []string
		for range 5 {
			id := r.roll(1, nil).Id
			r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
			want = append(want, id)
			if _, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{Config: "other", Version: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, order := range []musterv1.Order{musterv1.Order_ASC, musterv1.Order_DESC} {
			var got []string
			req := &musterv1.ListConfigRolloutsRequest{Config: "app", PageSize: 2, Order: order}
			for {
				page, err := r.rolls().ListConfigRollouts(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, ro := range page.Rollouts {
					got = append(got, ro.Id)
				}
				if req.PageToken = page.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if order == musterv1.Order_DESC {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", order, got, want)
			}
		}
		page, err := r.rolls().ListRolloutTargets(t.Context(), &musterv1.ListRolloutTargetsRequest{Id: want[0], PageSize: 2})
		if err != nil || len(page.Targets) != 2 || page.NextPageToken == "" {
			t.Fatalf("got %v, %v", page, err)
		}
		page, err = r.rolls().ListRolloutTargets(t.Context(), &musterv1.ListRolloutTargetsRequest{Id: want[0], PageSize: 2, PageToken: page.NextPageToken})
		if err != nil || len(page.Targets) != 1 || page.Targets[0].AgentId != "p002" || page.NextPageToken != "" {
			t.Errorf("got %v, %v", page, err)
		}
	})
}

func TestWaitForTheEndOfAConfigRollout(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(3, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(10 * time.Second)}).Id
		began := time.Now()
		got, err := r.rolls().GetConfigRollout(t.Context(), &musterv1.GetConfigRolloutRequest{Id: id, Wait: lasting(5 * time.Second)})
		if err != nil || got.EndTime != nil || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %v, %v", time.Since(began), got, err)
		}
		got, err = r.rolls().GetConfigRollout(t.Context(), &musterv1.GetConfigRolloutRequest{Id: id, Wait: lasting(time.Hour)})
		if err != nil || got.State != musterv1.ConfigRollout_DONE || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v, %v", time.Since(began), got, err)
		}
		synctest.Wait()
	})
}
