package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// bounce stops the coordinator and starts it again; the takers come back then.
func (r *rig) bounce(all []*taker) {
	r.t.Helper()
	leaveTakers(all)
	r.stop()
	r.start()
	for _, a := range all {
		a.come()
	}
}

// TestConfigRolloutSurvivesRestarts: while the canary has not answered, and while
// a window has not, nobody more is reached; who was reached stays so.
func TestConfigRolloutSurvivesRestarts(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(12, nil)
		setDeaf(all, true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "2", Batch: "3"}).Id
		r.bounce(all)
		time.Sleep(20 * time.Second)
		if n := offeredIn(all, v); n != 2 {
			t.Fatalf("after a restart %d were reached, want the canary of 2", n)
		}
		setDeaf(all[:2], false)
		time.Sleep(40 * time.Second) // the offer is made again
		if n := offeredIn(all, v); n != 5 {
			t.Fatalf("the canary is through, %d were reached, want 5", n)
		}
		r.bounce(all)
		time.Sleep(20 * time.Second)
		if n := offeredIn(all, v); n != 5 {
			t.Fatalf("after another restart %d were reached, want 5", n)
		}
		if got := r.rollout(id); got.Counts.Applied != 2 || got.Counts.Offered != 3 {
			t.Errorf("got %v", got)
		}
		setDeaf(all, false)
		r.wantRollout(id, musterv1.ConfigRollout_DONE, 2*time.Minute)
		if n := runs(all, "two"); n != 12 {
			t.Errorf("%d run it", n)
		}
		leaveTakers(all)
	})
}

// TestConfigRolloutHaltsOverARestart: what failed before counts after.
func TestConfigRolloutHaltsOverARestart(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(10, badVersion(2))
		setDeaf(all[1:], true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "2", MaxFailures: "1"}).Id
		synctest.Wait()
		if got := r.rollout(id); got.Counts.Failed != 1 || got.State != musterv1.ConfigRollout_RUNNING {
			t.Fatalf("got %v", got)
		}
		r.bounce(all)
		setDeaf(all, false)
		r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, 2*time.Minute)
		if n := offeredIn(all, v); n != 2 || runs(all, "one") != 10 {
			t.Errorf("%d were reached, %d run the old version", n, runs(all, "one"))
		}
		leaveTakers(all)
	})
}

// TestConfigRolloutGoesBackOverARestart: halted, and the coordinator ends before
// those reached have gone back. What they said of the version is not lost.
func TestConfigRolloutGoesBackOverARestart(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(6, nil)
		v := r.version("app", "two")
		all[1].judge = badVersion(v)
		all[0].judge = func(m *musterv1.ConfigOffer) string {
			if m.Version == v {
				all[0].deaf = true // it has the new version, and takes the old one later
			}
			return ""
		}
		setDeaf(all[1:2], true)
		id := r.roll(v, &musterv1.Rollout{Canary: "2"}).Id
		setDeaf(all[1:2], false) // it fails when it is offered the version again
		r.wantRollout(id, musterv1.ConfigRollout_HALTED, time.Minute)
		r.bounce(all)
		time.Sleep(10 * time.Second)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_HALTED || got.Counts.RolledBack != 1 || got.Counts.Applied != 1 || len(r.failedIn(id)) != 1 {
			t.Fatalf("got %v", got)
		}
		setDeaf(all, false)
		got := r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, time.Minute)
		if got.Counts.RolledBack != 2 || len(r.failedIn(id)) != 1 || runs(all, "one") != 6 {
			t.Errorf("got %v, and %d run the old version", got, runs(all, "one"))
		}
		leaveTakers(all)
	})
}

func TestPausedConfigRolloutStaysSoOverARestart(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(4, nil)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(time.Minute)}).Id
		r.mustControl(id, "pause")
		r.bounce(all)
		time.Sleep(10 * time.Minute)
		if n := offeredIn(all, v); n != 1 || r.rollout(id).State != musterv1.ConfigRollout_PAUSED {
			t.Errorf("%d were reached, it is %v", n, r.rollout(id))
		}
		all[0].wantFile(file("app"), "two")
		leaveTakers(all)
	})
}

// TestConfigRolloutReachesNobodyWithoutItsRow: what cannot be written down is
// not offered.
func TestConfigRolloutReachesNobodyWithoutItsRow(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		all := r.takers(4, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		s.refuse.Store(offeredPrefix)
		id := r.roll(v, nil).Id
		time.Sleep(time.Minute)
		if n := offeredIn(all, v); n != 0 {
			t.Fatalf("%d were reached without a row", n)
		}
		s.refuse.Store("")
		r.wantRollout(id, musterv1.ConfigRollout_DONE, time.Minute)
	})
}

// TestConfigRolloutHaltsAlthoughTheStoreIsFull: the decision is stored later,
// and meanwhile nobody more is reached.
func TestConfigRolloutHaltsAlthoughTheStoreIsFull(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		all := r.takers(4, badVersion(2))
		defer leaveTakers(all)
		setDeaf(all, true)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "1", Batch: "1"}).Id
		s.refuse.Store(rolloutPrefix)
		setDeaf(all, false)
		time.Sleep(5 * time.Minute)
		if n := offeredIn(all, v); n != 1 {
			t.Fatalf("%d were reached, want 1", n)
		}
		s.refuse.Store("")
		r.wantRollout(id, musterv1.ConfigRollout_ROLLED_BACK, time.Minute)
	})
}

func TestConfigRolloutAfterTheWatchWasCut(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		all := r.takers(4, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Batch: "1", PauseBetween: lasting(10 * time.Second)}).Id
		(*s.cutConfig.Load())()
		time.Sleep(time.Second)
		r.wantRollout(id, musterv1.ConfigRollout_DONE, 2*time.Minute)
		if n := runs(all, "two"); n != 4 {
			t.Errorf("%d run it", n)
		}
	})
}

// unreadable is a store that does not give rows under a prefix.
type unreadable struct {
	store.Store
	prefix atomic.Value // string; "": gives all
}

func (s *unreadable) Scan(ctx context.Context, sp store.Space, from store.Range) (store.Page, error) {
	if p, _ := s.prefix.Load().(string); p != "" && strings.HasPrefix(string(from.Prefix), p) {
		return store.Page{}, store.ErrUnavailable
	}
	return s.Store.Scan(ctx, sp, from)
}

// TestConfigRolloutIsReadAgain: one whose targets cannot be read at the start
// reaches nobody until they can.
func TestConfigRolloutIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &unreadable{Store: r.store}
		r.store = s
		r.start()
		all := r.takers(4, nil)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "1", PauseBetween: lasting(time.Minute)}).Id
		s.prefix.Store(targetsPrefix)
		r.bounce(all)
		time.Sleep(10 * time.Minute)
		if n := offeredIn(all, v); n != 1 {
			t.Errorf("%d were reached, want 1", n)
		}
		s.prefix.Store("")
		r.wantRollout(id, musterv1.ConfigRollout_DONE, 3*time.Minute)
		leaveTakers(all)
		r.stop()
		r.store.Close()
	})
}

// TestHaltedConfigRolloutIsAborted: told to stay as it is, it goes back when an
// operator says so.
func TestHaltedConfigRolloutIsAborted(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		all := r.takers(4, nil)
		defer leaveTakers(all)
		v := r.version("app", "two")
		all[1].judge = badVersion(v)
		ro, err := r.rolls().CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{
			Config: "app", Version: v, Plan: &musterv1.Rollout{Batch: "1"}, KeepOnHalt: true}})
		if err != nil {
			t.Fatal(err)
		}
		r.wantRollout(ro.Id, musterv1.ConfigRollout_HALTED, time.Minute)
		settle()
		all[0].wantFile(file("app"), "two")
		r.mustControl(ro.Id, "abort")
		time.Sleep(10 * time.Second)
		got := r.rollout(ro.Id)
		if got.State != musterv1.ConfigRollout_ABORTED || got.EndTime == nil || got.Counts.RolledBack != 2 || runs(all, "one") != 4 {
			t.Errorf("got %v, and %d run the old version", got, runs(all, "one"))
		}
	})
}

// flaky is a store of which every third commit of a rollout fails, applied or
// not, and whose watches end.
func (r *rig) flaky(seed uint64, on *atomic.Bool) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	r.store = faulty.New(r.store, func(call faulty.Call) (f faulty.Fault) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !on.Load():
		case call.Method == faulty.Watch:
			f.Cut = 1 + random.IntN(8)
		case call.Method == faulty.Commit && call.Batch.Ops[0].Space != spaceFleet:
			switch random.IntN(6) {
			case 0:
				f.Refuse = errors.New("disk full")
			case 1:
				f.Forget = true
			}
		}
		return f
	})
}

// rollAnyhow starts a rollout, again and again with the same key.
func (r *rig) rollAnyhow(key string, version int32) string {
	r.t.Helper()
	for range 100 {
		ro, err := r.rolls().CreateConfigRollout(r.t.Context(), &musterv1.CreateConfigRolloutRequest{IdempotencyKey: key,
			Rollout: &musterv1.ConfigRollout{Config: "app", Version: version, Plan: &musterv1.Rollout{Canary: "2", Batch: "2"}}})
		if err == nil {
			return ro.Id
		}
		time.Sleep(time.Second)
	}
	r.t.Fatal("it cannot be started")
	return ""
}

// TestConfigRolloutsOnAFlakyStore: a bad version reaches the canary at most, and
// a good one everybody.
func TestConfigRolloutsOnAFlakyStore(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			var on atomic.Bool
			r := newRig(t)
			r.flaky(seed, &on)
			r.start()
			all := r.takers(8, badVersion(2))
			bad, good := r.version("app", "bad"), r.version("app", "good")
			on.Store(true)
			r.store.(*faulty.Store).CutWatches()
			first := r.rollAnyhow("first", bad)
			r.wantRollout(first, musterv1.ConfigRollout_ROLLED_BACK, 10*time.Minute)
			time.Sleep(time.Minute)
			if n := offeredIn(all, bad); n > 2 || runs(all, "one") != 8 {
				t.Errorf("seed %d: %d were touched, %d run the old version", seed, n, runs(all, "one"))
			}
			second := r.rollAnyhow("second", good)
			r.wantRollout(second, musterv1.ConfigRollout_DONE, 10*time.Minute)
			time.Sleep(time.Minute)
			if n := runs(all, "good"); n != 8 {
				t.Errorf("seed %d: %d run the new version", seed, n)
			}
			on.Store(false)
			leaveTakers(all)
			r.stop()
			r.store.Close()
		})
	}
}

// TestUnreadConfigRolloutIsSuperseded: one whose targets cannot be read is not in
// force, but in progress. Another one takes its place all the same, and the first
// does not come back when it can be read.
func TestUnreadConfigRolloutIsSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &unreadable{Store: r.store}
		r.store = s
		r.start()
		all := r.takers(4, nil)
		v := r.version("app", "two")
		id := r.roll(v, &musterv1.Rollout{Canary: "1", PauseBetween: lasting(time.Hour)}).Id
		s.prefix.Store(targetsPrefix)
		r.bounce(all)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_RUNNING || !strings.Contains(got.StateReason, "could not be read") {
			t.Errorf("got %v", got)
		}
		_, err := r.controlRollout(id, "abort")
		wantReason(t, err, "ROLLOUT_NOT_READ", "")
		next := r.roll(r.version("app", "three"), nil).Id
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_SUPERSEDED || got.EndTime == nil || !strings.Contains(got.StateReason, next) {
			t.Errorf("got %v", got)
		}
		s.prefix.Store("")
		r.wantRollout(next, musterv1.ConfigRollout_DONE, time.Minute)
		time.Sleep(time.Hour)
		if got := r.rollout(id); got.State != musterv1.ConfigRollout_SUPERSEDED {
			t.Errorf("later it is %v", got)
		}
		if n := runs(all, "three"); n != 4 {
			t.Errorf("%d run it", n)
		}
		leaveTakers(all)
		r.stop()
		r.store.Close()
	})
}
