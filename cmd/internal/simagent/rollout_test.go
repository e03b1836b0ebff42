package simagent

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// A rollout over 1,000 agents with canary 1, batch 10 % and two failures allowed.
const (
	rolloutAgents = 1000
	allowed       = 2
	atMost        = 1 + 100 // the canary and one window
	vanishAfter   = 5 * time.Second
)

// witness notes the order of commits: which targets had their SENT mark before the
// failure that is one too many.
type witness struct {
	store.Store
	commits atomic.Int64

	mu       sync.Mutex
	failures int
	marked   map[uint32]bool // by the target's place in the list
}

func newWitness(s store.Store) *witness { return &witness{Store: s, marked: map[uint32]bool{}} }

func (w *witness) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	w.commits.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	res, err := w.Store.Commit(ctx, b)
	if err != nil {
		return res, err
	}
	for _, op := range b.Ops {
		switch key := string(op.Key); {
		case strings.HasPrefix(key, "res/"):
			pack := &musterv1.ResultPack{}
			if err := proto.Unmarshal(op.Value, pack); err != nil {
				return res, err
			}
			for _, t := range pack.Targets {
				if t.State == musterv1.Target_FAILED {
					w.failures++
				}
			}
		case strings.HasPrefix(key, "sent/") && op.Kind != store.Delete && w.failures <= allowed:
			marks := &musterv1.SentMarks{}
			if err := proto.Unmarshal(op.Value, marks); err != nil {
				return res, err
			}
			for _, i := range marks.Targets {
				w.marked[i] = true
			}
		}
	}
	return res, nil
}

func (w *witness) wasMarked(i int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marked[uint32(i)]
}

// reached lists the places of the agents that got command id; they are in the
// order of the agents' ids.
func reached(f *Fleet, id string) (places []int) {
	for n, a := range f.agents {
		if a.knows(id) {
			places = append(places, n)
		}
	}
	return places
}

// knows says whether the agent ever got the command, or vanished at it.
func (a *agent) knows(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended || a.journal.held[id] != nil || a.journal.isSettled(id)
}

// rolloutTest rolls a command out over agents that behave like cfg, and does
// meanwhile what the test is about.
func rolloutTest(t *testing.T, cfg Config, meanwhile func(r *rig, f *Fleet)) {
	rigTest(t, coordinator.Config{HeartbeatInterval: time.Minute}, func(t *testing.T, r *rig) {
		cfg.Agents = rolloutAgents
		f, _ := r.fleet(cfg)
		waitRegistered(t, f)
		id := r.Submit(&musterv1.Command{
			Rollout:   &musterv1.Rollout{Canary: "1", Batch: "10%", MaxFailures: "2", VanishAfter: durationpb.New(vanishAfter)},
			ExpiresIn: durationpb.New(10 * time.Minute), Timeout: durationpb.New(time.Minute),
		})
		if meanwhile != nil {
			meanwhile(r, f)
		}
		r.waitState(id, musterv1.Command_HALTED, time.Minute)
		synctest.Wait() // for what was on its way
		got := reached(f, id)
		if len(got) <= allowed || len(got) > atMost {
			t.Errorf("%d agents got it, at most %d may", len(got), atMost)
		}
		for _, i := range got {
			if !r.store.wasMarked(i) {
				t.Errorf("target %d was sent after the failure that was one too many", i)
			}
		}
		time.Sleep(3 * time.Minute)
		if n := len(reached(f, id)); n != len(got) {
			t.Errorf("%d more got it after the halt", n-len(got))
		}
		if cmd := r.Command(id); cmd.State != musterv1.Command_HALTED {
			t.Errorf("later it is %s", cmd.State)
		}
	})
}

func TestRolloutThatFailsStops(t *testing.T) {
	rolloutTest(t, Config{Fail: 1}, nil)
}

func TestRolloutWhoseCanaryPassesAndTheRestFailsStops(t *testing.T) {
	rolloutTest(t, Config{Spare: 1, Fail: 1}, nil)
}

func TestRolloutThatFailsSlowlyStops(t *testing.T) {
	rolloutTest(t, Config{Fail: 1, Delay: time.Second}, nil)
}

func TestRolloutWhoseAgentsVanishStops(t *testing.T) {
	rolloutTest(t, Config{Spare: 1, Vanish: 1}, nil)
}

// restarts stops the coordinator while the canary is at work, and again while the
// first window is.
func restarts(r *rig, f *Fleet) {
	r.t.Helper()
	for _, n := range []int64{1, 2} {
		eventually(r.t, time.Minute, "somebody has got it", func() bool { return f.Report().Commands >= n })
		r.Stop()
		time.Sleep(3 * time.Second)
		r.start()
	}
}

func TestRolloutThatFailsStopsOverRestarts(t *testing.T) {
	rolloutTest(t, Config{Fail: 1, Delay: time.Second}, restarts)
}

func TestRolloutWhoseAgentsVanishStopsOverRestarts(t *testing.T) {
	rolloutTest(t, Config{Spare: 1, Vanish: 1, Delay: time.Second}, restarts)
}

func TestHaltedRolloutStaysSoOverARestart(t *testing.T) {
	rolloutTest(t, Config{Spare: 1, Fail: 1}, func(r *rig, f *Fleet) {
		eventually(r.t, time.Minute, "it has failed too often", func() bool { return f.Report().Acked > 1+allowed })
		r.Stop()
		r.start()
	})
}
