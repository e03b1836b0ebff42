package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func objectOfSize(key string, n int) string {
	return fmt.Sprintf(`{%q: %q}`, key, strings.Repeat("x", n))
}

// A version that makes the merged document too large fails on its canary like any
// other bad one, with the reason, and everybody keeps the document there was.
func TestRolloutHaltsOnDocumentThatCannotBeMerged(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		var all []*taker
		for i := range 10 {
			all = append(all, r.taker(fmt.Sprintf("p%d", i)).come())
		}
		defer leaveTakers(all)
		r.head(musterv1.Config_INSTANCE, "large")
		r.bind("large", fleetWide(r.version("large", objectOfSize("l", maxDocument/2))))
		r.head(musterv1.Config_INSTANCE, "app")
		r.bind("app", fleetWide(r.version("app", `{"a":1}`)))
		before := all[0].says[instance].RunningVersion
		v := r.version("app", objectOfSize("a", maxDocument/2))
		id := r.roll(v, &musterv1.Rollout{Canary: "2"}).Id
		got := r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, time.Minute)
		if got.Counts.Skipped != 8 || len(r.failedIn(id)) == 0 || !strings.Contains(got.StateReason, "merged document") {
			t.Errorf("got %v", got)
		}
		for _, a := range all {
			r.wantConfig("app", a.reg.AgentId, musterv1.ConfigStatus_APPLIED, 1, 1)
			if got := a.says[instance].RunningVersion; got != before {
				t.Errorf("%s runs document %d, want %d", a.reg.AgentId, got, before)
			}
		}
	})
}

// Bound at once it is merged once, not for each agent, and every agent's status
// says why it does not run what it shall.
func TestDocumentThatCannotBeMergedIsTriedOnce(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		var all []*taker
		for i := range 10 {
			all = append(all, r.taker(fmt.Sprintf("p%d", i)).come())
		}
		defer leaveTakers(all)
		r.head(musterv1.Config_INSTANCE, "large")
		r.bind("large", fleetWide(r.version("large", objectOfSize("l", maxDocument/2))))
		r.head(musterv1.Config_INSTANCE, "app")
		var reads countedReads
		reads.Store = r.store
		r.c.store = &reads
		r.bind("app", fleetWide(r.version("app", objectOfSize("a", maxDocument/2))))
		time.Sleep(time.Hour)
		if n := reads.contents.Load(); n > 2*maxDocument/2/maxPiece+10 {
			t.Errorf("content was read %d times", n)
		}
		st := r.wantConfig("app", "p3", musterv1.ConfigStatus_FAILED, 1, 0)
		if !strings.Contains(st.Reason, "merged document") {
			t.Errorf("got %v", st)
		}
		r.wantConfig("large", "p3", musterv1.ConfigStatus_APPLIED, 1, 1)
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Counts.Failed != 10 || cfg.Counts.Total != 10 {
			t.Errorf("got %v, %v", cfg, err)
		}
		r.bind("large") // there is room again
		time.Sleep(time.Minute)
		r.wantConfig("app", "p3", musterv1.ConfigStatus_APPLIED, 1, 1)
	})
}

// countedReads counts the pieces of content that are read.
type countedReads struct {
	store.Store
	contents atomic.Int64
}

func (s *countedReads) Get(ctx context.Context, space store.Space, keys ...[]byte) ([]store.KV, error) {
	if space == spaceBulk {
		s.contents.Add(int64(len(keys)))
	}
	return s.Store.Get(ctx, space, keys...)
}
