package coordinator

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Operators, agents and the store do what they like for a while, by chance: configs,
// bindings, groups and rollouts change, agents fail, go, come, fall silent and are
// forgotten, the coordinator is stopped and started, commits fail or are not
// confirmed. Once all is quiet, every rollout has ended or waits for an operator,
// every agent holds what its bindings say or says why not, and no status is a lie.
func TestAllSettlesAfterAStorm(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorm(t, seed)
				for range 60 {
					s.strike()
					time.Sleep(time.Duration(s.rnd.IntN(2000)) * time.Millisecond)
				}
				s.calm()
				s.wantAllEnded()
				s.wantAllTrue()
				leaveTakers(s.all)
				s.r.stop()
				s.r.store.Close()
			})
		})
	}
}

type storm struct {
	r      *rig
	rnd    *rand.Rand
	faults atomic.Bool // the store fails
	all    []*taker
	gone   map[*taker]bool
}

// stormConfigs are two that are merged into one document, and a file.
var stormConfigs = map[string]musterv1.Config_Kind{"app": musterv1.Config_PIPELINE, "i1": musterv1.Config_INSTANCE, "i2": musterv1.Config_INSTANCE}

func newStorm(t *testing.T, seed uint64) *storm {
	s := &storm{r: newRig(t), rnd: rand.New(rand.NewPCG(seed, 1)), gone: map[*taker]bool{}}
	plan := faulty.Random(seed, faulty.Odds{Refuse: 0.1, Forget: 0.1})
	s.r.store = faulty.New(s.r.store, func(c faulty.Call) faulty.Fault {
		if !s.faults.Load() {
			return faulty.Fault{}
		}
		return plan(c)
	})
	s.r.start()
	s.r.group("g", "", "p0", "p1", "p2")
	for name, kind := range stormConfigs {
		s.r.head(kind, name)
		s.r.bind(name, fleetWide(s.r.version(name, fmt.Sprintf(`{%q: 1}`, name))))
	}
	for i := range 6 {
		a := s.r.taker(fmt.Sprintf("p%d", i))
		s.all = append(s.all, a.come())
		dice := rand.New(rand.NewPCG(seed, uint64(2+i)))
		a.mu.Lock()
		a.judge = func(*musterv1.ConfigOffer) string {
			if dice.IntN(6) == 0 {
				return "by chance"
			}
			return ""
		}
		a.mu.Unlock()
	}
	s.faults.Store(true)
	return s
}

// strike does one thing. What is refused is no harm.
func (s *storm) strike() {
	ctx, name, a := s.r.t.Context(), []string{"app", "i1", "i2"}[s.rnd.IntN(3)], s.all[s.rnd.IntN(len(s.all))]
	version := func() int32 { return 1 + s.rnd.Int32N(max(1, s.r.c.configs.catalog.head(name).LatestVersion)) }
	switch s.rnd.IntN(14) {
	case 0, 1:
		s.r.configs().CreateConfigVersion(ctx, &musterv1.CreateConfigVersionRequest{Config: name, Content: fmt.Appendf(nil, `{%q: %d}`, name, s.rnd.Int())})
	case 2, 3, 4:
		s.r.rolls().CreateConfigRollout(ctx, &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{
			Config: name, Version: version(), KeepOnHalt: s.rnd.IntN(3) == 0,
			Plan: &musterv1.Rollout{Canary: fmt.Sprint(s.rnd.IntN(3)), Batch: fmt.Sprint(1 + s.rnd.IntN(3)), MaxFailures: fmt.Sprint(s.rnd.IntN(2))}}})
	case 5, 6:
		if list, err := s.r.rolls().ListConfigRollouts(ctx, &musterv1.ListConfigRolloutsRequest{PageSize: 5}); err == nil && len(list.Rollouts) > 0 {
			s.r.controlRollout(list.Rollouts[s.rnd.IntN(len(list.Rollouts))].Id, []string{"pause", "resume", "abort"}[s.rnd.IntN(3)])
		}
	case 7:
		bindings := []*musterv1.Binding{fleetWide(version()), forGroup("g", version())}
		s.r.configs().PutConfig(ctx, &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: name, Bindings: bindings[s.rnd.IntN(2):]}})
	case 8:
		s.r.groups().PutGroup(ctx, &musterv1.PutGroupRequest{Group: &musterv1.Group{Name: "g", Agents: []string{a.reg.AgentId, "p0"}}})
	case 9:
		s.part(a)
	case 10:
		s.meet(a)
	case 11:
		a.mu.Lock()
		a.deaf = !a.deaf
		a.mu.Unlock()
	case 12:
		s.part(a)
		s.r.delete(a.reg.AgentId)
	case 13:
		s.restart()
	}
}

func (s *storm) part(a *taker) {
	if !s.gone[a] {
		a.leave()
		s.gone[a] = true
	}
}

func (s *storm) meet(a *taker) {
	if s.gone[a] {
		a.come()
		s.gone[a] = false
	}
}

func (s *storm) restart() {
	s.faults.Store(false) // or it would not start
	there := make([]*taker, 0, len(s.all))
	for _, a := range s.all {
		if !s.gone[a] {
			there = append(there, a)
		}
	}
	s.r.bounce(there)
	s.faults.Store(true)
}

func (s *storm) calm() {
	s.faults.Store(false)
	setDeaf(s.all, false)
	for _, a := range s.all {
		a.mu.Lock()
		a.judge = nil
		a.mu.Unlock()
		s.meet(a)
	}
	time.Sleep(2 * time.Hour)
}

// wantAllEnded also aborts what waits for an operator.
func (s *storm) wantAllEnded() {
	s.r.t.Helper()
	ended := func(abort bool) {
		list, err := s.r.rolls().ListConfigRollouts(s.r.t.Context(), &musterv1.ListConfigRolloutsRequest{PageSize: maxPage})
		if err != nil {
			s.r.t.Fatal(err)
		}
		for _, ro := range list.Rollouts {
			waits := ro.State == musterv1.ConfigRollout_PAUSED || ro.State == musterv1.ConfigRollout_HALTED && ro.KeepOnHalt
			switch {
			case ro.EndTime == nil && waits && abort:
				s.r.mustControl(ro.Id, "abort")
			case ro.EndTime == nil:
				s.r.t.Errorf("it has not ended: %v", ro)
			}
		}
	}
	ended(true)
	time.Sleep(time.Hour)
	ended(false)
}

func (s *storm) wantAllTrue() {
	s.r.t.Helper()
	for name := range stormConfigs {
		cfg, err := s.r.configs().GetConfig(s.r.t.Context(), &musterv1.GetConfigRequest{Name: name})
		if err != nil || cfg.RolloutId != "" {
			s.r.t.Errorf("%v, %v", cfg, err)
		}
		for _, a := range s.all {
			id := a.reg.AgentId
			st := s.r.statusOf(name, id)
			bound := bindingOf(cfg.GetBindings(), id, s.r.c.groups.of(id)).GetVersion()
			if bound != st.GetRunningVersion() && st.GetStatus() != musterv1.ConfigStatus_FAILED {
				s.r.t.Errorf("config %s on %s is bound to %d: %v", name, id, bound, st)
			}
			if name == "app" {
				s.wantTrue(a, st.GetRunningVersion())
			}
		}
	}
}

// wantTrue wants that what an agent is said to run of "app" is what it holds.
func (s *storm) wantTrue(a *taker, running int32) {
	s.r.t.Helper()
	if running == 0 {
		a.wantNoFile(file("app"))
		return
	}
	v, err := s.r.c.configs.version(s.r.t.Context(), configRef{"app", running})
	if err != nil {
		s.r.t.Fatal(err)
	}
	content, err := s.r.c.configs.content(s.r.t.Context(), v)
	if err != nil {
		s.r.t.Fatal(err)
	}
	a.wantFile(file("app"), string(content))
}
