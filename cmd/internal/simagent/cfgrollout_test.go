package simagent

import (
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// judges remembers which agents were offered the bad version, 2.
type judges struct {
	answer Answer // what they make of it

	mu     sync.Mutex
	judged map[string]bool
}

func (j *judges) onConfig(o Offered) Answer {
	if o.Version != 2 {
		return Answer{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.judged[o.Agent] = true
	return j.answer
}

func (j *judges) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.judged)
}

// bound makes the config "app" with versions 1 and 2, the fleet bound to 1.
func (r *rig) bound() {
	r.t.Helper()
	app := &musterv1.Config{Name: "app", Kind: musterv1.Config_PIPELINE}
	_, err := r.Configs.PutConfig(r.t.Context(), &musterv1.PutConfigRequest{Config: app})
	for _, content := range []string{"good", "bad"} {
		if err == nil {
			_, err = r.Configs.CreateConfigVersion(r.t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: []byte(content)})
		}
	}
	app.Bindings = []*musterv1.Binding{{Fleet: true, Version: 1}}
	if err == nil {
		_, err = r.Configs.PutConfig(r.t.Context(), &musterv1.PutConfigRequest{Config: app})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// waitRolledBack returns the rollout when it has gone back.
func (r *rig) waitRolledBack(id string, within time.Duration) (ro *musterv1.ConfigRollout) {
	r.t.Helper()
	eventually(r.t, within, "the rollout has gone back", func() bool {
		var err error
		if ro, err = r.Rollouts.GetConfigRollout(r.t.Context(), &musterv1.GetConfigRolloutRequest{Id: id}); err != nil {
			r.t.Fatal(err)
		}
		return ro.State == musterv1.ConfigRollout_ROLLED_BACK
	})
	return ro
}

// runOne counts the agents that run version 1.
func runOne(f *Fleet) (n int) {
	for i := range f.agents {
		if s := f.ConfigOf(i, musterv1.Config_PIPELINE, "app"); s.GetRunningVersion() == 1 && s.Status == musterv1.ConfigStatus_APPLIED {
			n++
		}
	}
	return n
}

// badVersionTest rolls version 2 out over 1,000 agents with a canary of 5, and
// does meanwhile what the test is about: 5 agents are touched, and these run
// version 1 again.
func badVersionTest(t *testing.T, answer Answer, meanwhile func(r *rig)) {
	rigTest(t, coordinator.Config{HeartbeatInterval: time.Minute}, func(t *testing.T, r *rig) {
		j := &judges{answer: answer, judged: map[string]bool{}}
		f, _ := r.fleet(Config{Agents: rolloutAgents, OnConfig: j.onConfig})
		waitRegistered(t, f)
		r.bound()
		eventually(t, time.Minute, "all run version 1", func() bool { return runOne(f) == rolloutAgents })
		ro, err := r.Rollouts.CreateConfigRollout(t.Context(), &musterv1.CreateConfigRolloutRequest{
			Rollout: &musterv1.ConfigRollout{Config: "app", Version: 2, Plan: &musterv1.Rollout{Canary: "5", Batch: "10%"}}})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "the canary is reached", func() bool { return j.count() == 5 })
		if meanwhile != nil {
			meanwhile(r)
		}
		got := r.waitRolledBack(ro.Id, 10*time.Minute)
		if c := got.Counts; c.Failed+c.Vanished+c.RolledBack != 5 || c.Skipped != rolloutAgents-5 {
			t.Errorf("got %v", got)
		}
		time.Sleep(10 * time.Minute) // those that died come back
		if n := j.count(); n != 5 || runOne(f) != rolloutAgents {
			t.Errorf("%d were touched, %d run version 1", n, runOne(f))
		}
	})
}

// The agents take a second, so that the whole canary is reached before one fails.

func TestBadConfigVersionTouchesFiveOfAThousand(t *testing.T) {
	badVersionTest(t, Answer{Takes: time.Second, Fail: "told to"}, nil)
}

func TestDeadlyConfigVersionTouchesFiveOfAThousand(t *testing.T) {
	badVersionTest(t, Answer{Takes: time.Second, Die: true, Back: 5 * time.Minute}, nil)
}

func TestBadConfigVersionTouchesFiveOverARestart(t *testing.T) {
	badVersionTest(t, Answer{Takes: 10 * time.Second, Fail: "told to"}, func(r *rig) {
		r.Stop()
		time.Sleep(3 * time.Second)
		r.start()
	})
}

func TestDeadlyConfigVersionTouchesFiveOverARestart(t *testing.T) {
	badVersionTest(t, Answer{Takes: time.Second, Die: true, Back: 5 * time.Minute}, func(r *rig) {
		time.Sleep(3 * time.Second)
		r.Stop()
		time.Sleep(3 * time.Second)
		r.start()
	})
}
