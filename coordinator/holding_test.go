package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// N33, N34: who leaves a group loses its configs, who joins gets them.
func TestGroupsBringAndTakeConfigs(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.taker("a").come(), r.taker("b").come()
		r.group("web", "", "a")
		r.head(musterv1.Config_PIPELINE, "app")
		r.bind("app", forGroup("web", r.version("app", "one")))
		a.wantFile(file("app"), "one")
		b.wantOffers(file("app"))
		r.group("web", "", "b")
		settle()
		a.wantNoFile(file("app"))
		b.wantFile(file("app"), "one")
		r.wantConfig("app", "a", deleted, deletedVersion, 0)
		b.leave()
		r.group("web", "", "a")
		b.come()
		b.wantNoFile(file("app"))
		a.wantFile(file("app"), "one")
	})
}

// N4: beats have nothing to do with configs.
func TestBeatsCostConfigsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var gets, commits atomic.Int64
		r.store = faulty.New(r.store, func(call faulty.Call) faulty.Fault {
			switch call.Method {
			case faulty.Commit:
				commits.Add(1)
			case faulty.Get, faulty.Scan:
				gets.Add(1)
			}
			return faulty.Fault{}
		})
		r.start()
		a := r.taker("a").come()
		r.pipeline("app", "one")
		time.Sleep(2 * offerAgain) // the look that every offer is followed by is over
		synctest.Wait()
		desired := r.c.configs.desired
		desired.mu.Lock()
		desired.from = nil // whoever asks sets it again
		desired.mu.Unlock()
		gets.Store(0)
		commits.Store(0)
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if g, c := gets.Load(), commits.Load(); c != 0 || g > 9*6+10 { // retention looks every 10 s
			t.Errorf("%d reads and %d commits in 9 minutes of beats", g, c)
		}
		desired.mu.Lock()
		if desired.from != nil {
			t.Error("beats asked for desired state")
		}
		desired.mu.Unlock()
		a.wantOffers(file("app"), 1)
		r.stop()
		r.store.Close()
	})
}

// N78, N83: a status that cannot be is refused with its field, counted, and
// harms nothing else; what is right in the same message counts.
func TestStatusesThatCannotBeAreRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("app", "one")
		r.pipeline("other", "one")
		r.head(musterv1.Config_PIPELINE, "unbound")
		r.version("unbound", "x")
		good := &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "other", Version: 1, Status: failed, Reason: "good"}
		for i, x := range []struct {
			bad   *musterv1.ConfigStatus
			field string
		}{
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "never", Version: 1, Status: applied}, "name"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "unbound", Version: 1, Status: applied}, "name"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_INSTANCE, Name: "app", Version: 1, Status: applied}, "name"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 2, Status: applied, RunningVersion: 1}, "version"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: -2, Status: applied}, "version"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: applied, RunningVersion: 9}, "running_version"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: 17}, "status"},
			{&musterv1.ConfigStatus{Kind: 9, Name: "app", Version: 1, Status: applied}, "kind"},
			{&musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: failed, Reason: strings.Repeat("r", maxReason+1)}, "reason"},
		} {
			good.Reason = fmt.Sprint("good ", i)
			a.say(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{x.bad, proto.CloneOf(good)}})
			if n := a.lastNack(); n.Reason != musterv1.Nack_INVALID || n.Field != "configs[0]."+x.field || n.Type != "muster.v1.ConfigFeedback" {
				t.Errorf("%v: %v", x.bad, n)
			}
			if st := r.statusOf("other", "a"); st.Reason != good.Reason {
				t.Errorf("beside %v: %v", x.bad, st)
			}
		}
		r.wantConfig("app", "a", applied, 1, 1)
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

// A hostile or newer agent's Register is taken as far as it is understood.
func TestRegisterWithOddConfigsIsTaken(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a")
		a.reg.Capabilities = takesAll
		a.reg.Configs = []*musterv1.ConfigStatus{
			{Kind: musterv1.Config_PIPELINE, Name: "../../etc/passwd", Version: 1, Status: applied},
			{Kind: 77, Name: "x", Version: 1},
			{Kind: musterv1.Config_PIPELINE, Name: "twice", Version: 1, Status: applied},
			{Kind: musterv1.Config_PIPELINE, Name: "twice", Version: 2, Status: applied},
			{Kind: musterv1.Config_PIPELINE, Name: "new", Version: 3, Status: 99},
		}
		a.join()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		all := r.agentConfigs("a").Configs
		if len(all) != 2 || all[0].Name != "new" || all[0].Status != unset || all[1].Name != "twice" {
			t.Errorf("known: %v", all)
		}
		b := r.peer("b")
		b.reg.Configs = make([]*musterv1.ConfigStatus, maxHeldConfigs+1)
		for i := range b.reg.Configs {
			b.reg.Configs[i] = &musterv1.ConfigStatus{Name: fmt.Sprint("c", i)}
		}
		b.join()
		if n := b.lastNack(); n.Field != "configs" {
			t.Errorf("too many: %v", n)
		}
	})
}

// N61: the coordinator says that it remembers statuses, for it does.
func TestCoordinatorRemembersStatuses(t *testing.T) {
	if remembers&uint64(musterv1.CoordinatorCapability_REMEMBERS_PIPELINE_STATUS) == 0 || remembers&uint64(musterv1.CoordinatorCapability_REMEMBERS_INSTANCE_STATUS) == 0 {
		t.Error("a bit is not set")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.taker("a").come()
		r.pipeline("app", "one")
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"x":1}`)))
		before := r.agentConfigs("a")
		a.leave()
		r.stop()
		r.start() // all of it from the rows
		r.wantConfig("app", "a", applied, 1, 1)
		r.wantConfig("base", "a", applied, 1, 1)
		if after := r.agentConfigs("a"); !proto.Equal(before, after) {
			t.Errorf("before %v\nafter %v", before, after)
		}
		offers := len(a.offers)
		a.come()
		if len(a.offers) != offers {
			t.Errorf("offered again after a restart: %v", a.offers[offers:])
		}
		r.stop()
		r.store.Close()
	})
}

// P37: what runs is known also of a document that is not wanted any more, after
// a restart.
func TestRunningDocumentIsKnownAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.taker("a").come()
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"x":1}`)))
		a.judge = func(*musterv1.ConfigOffer) string { return "no" }
		r.bind("base", fleetWide(r.version("base", `{"x":2}`)))
		r.wantConfig("base", "a", failed, 2, 1)
		a.leave()
		r.stop()
		r.start()
		r.wantConfig("base", "a", failed, 2, 1)
		a.come()
		r.wantConfig("base", "a", failed, 2, 1)
		if n := len(a.got(instance)); n != 2 {
			t.Errorf("%d offers, want 2", n)
		}
		r.stop()
		r.store.Close()
	})
}

// What an agent says of its configs may be more than a row holds.
func TestManyLongReasonsFitIntoARow(t *testing.T) {
	c, err := New(t.Context(), store.NewMem(Spaces...), Config{})
	if err != nil {
		t.Fatal(err)
	}
	held := make([]heldConfig, maxHeldConfigs)
	for i := range held {
		held[i] = heldConfig{kind: musterv1.Config_PIPELINE, name: fmt.Sprintf("%0128d", i), version: 1 << 30, running: 1 << 30, status: failed, reason: strings.Repeat("r", maxReason)}
	}
	op := c.configs.heldOp("a", held)
	if err := (store.Batch{Ops: []store.Op{op}}).Check(); err != nil {
		t.Error(err)
	}
}

// C090, N84: a deleted config leaves also those agents that were offline, and
// one that is made again by that name is another.
func TestC090DeletedConfigGoesFromAgentsThatReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a, b := r.taker("a").come(), r.taker("b").come()
		r.pipeline("app", "old")
		a.leave()
		r.deleteConfig("app")
		b.wantNoFile(file("app"))
		r.stop()
		b.leave()
		r.start()
		a.come()
		a.wantNoFile(file("app"))
		if st := a.says[file("app")]; st.Status != deleted {
			t.Errorf("a says %v", st)
		}
		a.leave()
		r.pipeline("app", "new") // its version is not that of the old one
		a.come()
		b.come()
		a.wantFile(file("app"), "new")
		b.wantFile(file("app"), "new")
		if n := a.lastOffer().Version; n != 2 {
			t.Errorf("the new config's first version is %d, want 2", n)
		}
		if _, err := r.configs().GetConfigVersion(t.Context(), &musterv1.GetConfigVersionRequest{Config: "app", Version: 1}); err == nil {
			t.Error("version 1 of the deleted config is there")
		}
		r.stop()
		r.store.Close()
	})
}

// C092: after a crash between apply and report the next registration tells, and
// a coordinator with an empty store takes away nothing that it cannot know.
func TestC092StatusAndFilesOutliveTheCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.taker("a").come()
		a.deaf = true
		r.pipeline("app", "one")
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"x":1}`)))
		r.stop()
		a.leave()
		a.deaf = false
		a.files[file("app")] = []byte("one") // it was renamed, and nobody heard of it
		a.says[file("app")] = &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: applied, RunningVersion: 1}
		r.start()
		a.come()
		r.wantConfig("app", "a", applied, 1, 1)
		r.wantConfig("base", "a", applied, 1, 1)

		a.leave()
		r.stop()
		r.store = store.NewMem(Spaces...) // wiped
		r.start()
		a.come()
		a.wantFile(file("app"), "one")
		if len(a.files) != 2 {
			t.Errorf("files left: %v", a.files)
		}
		for _, st := range r.agentConfigs("a").Configs {
			if st.WantedVersion != 0 || st.Status != applied {
				t.Errorf("shown as %v, want it left alone", st)
			}
		}
		r.head(musterv1.Config_INSTANCE, "another") // not for this agent
		r.bind("another", forAgent("b", r.version("another", `{}`)))
		a.wantFile(instance, "{\n  \"x\": 1\n}\n")
		r.pipeline("app", "two") // the name is known again, and wanted
		a.wantFile(file("app"), "two")
		r.bind("app")
		a.wantNoFile(file("app"))
		r.stop()
		r.store.Close()
	})
}

// A version whose number is right, but which this store has not seen the agent
// take, is offered once: the agent finds out whether it is the same.
func TestC092VersionOfUnknownOriginIsOfferedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pipeline("app", "one")
		a := r.taker("a")
		a.deaf = true // it holds just that, and has nothing to say
		a.says[file("app")] = &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: applied, RunningVersion: 1}
		a.come()
		r.wantConfig("app", "a", applied, 1, 1)
		time.Sleep(2 * time.Hour)
		a.wantOffers(file("app"), 1)
		a.leave()
		r.stop()
		r.start()
		a.come()
		time.Sleep(time.Hour)
		a.wantOffers(file("app"), 1)
		r.stop()
		r.store.Close()
	})
}

// A status that the store could not take is written later.
func TestStatusIsStoredWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var down atomic.Bool
		inner := r.store
		r.store = faulty.New(inner, func(call faulty.Call) faulty.Fault {
			if down.Load() && call.Method == faulty.Commit {
				return faulty.Fault{Refuse: context.DeadlineExceeded}
			}
			return faulty.Fault{}
		})
		r.start()
		a := r.taker("a").come()
		r.pipeline("app", "one")
		stored := func() musterv1.ConfigStatus_Status {
			kvs, err := inner.Get(t.Context(), spaceFleet, heldKey("a"))
			if err != nil {
				t.Fatal(err)
			}
			row := &musterv1.AgentConfigs{}
			if err := decode(kvs[0].Key, kvs[0].Value, row); err != nil {
				t.Fatal(err)
			}
			return row.Configs[0].Status
		}
		if s := stored(); s != applied {
			t.Fatalf("stored as %s", s)
		}
		down.Store(true)
		a.say(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, Status: failed, RunningVersion: 1}}})
		time.Sleep(3 * time.Second)
		if s := stored(); s != applied {
			t.Fatalf("stored as %s by a store that is down", s)
		}
		r.wantConfig("app", "a", failed, 1, 1)
		down.Store(false)
		time.Sleep(3 * time.Second)
		if s := stored(); s != failed {
			t.Errorf("stored as %s, want FAILED", s)
		}
		r.stop()
		r.store.Close()
	})
}

// A watch that is cut, and reads that are refused, delay and lose nothing.
func TestConfigsSurviveACutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var deny atomic.Bool
		f := faulty.New(r.store, func(call faulty.Call) faulty.Fault {
			if deny.Load() && call.Method == faulty.Get && call.Space == spaceBulk {
				return faulty.Fault{Refuse: context.DeadlineExceeded}
			}
			return faulty.Fault{}
		})
		r.store = f
		r.start()
		a := r.taker("a").come()
		r.pipeline("app", "one")
		f.CutWatches()
		r.bind("app", fleetWide(r.version("app", "two")))
		time.Sleep(2 * time.Second)
		a.wantFile(file("app"), "two")
		deny.Store(true)
		r.bind("app", fleetWide(r.version("app", "three")))
		a.wantFile(file("app"), "two")
		deny.Store(false)
		time.Sleep(offerAgain + 2*time.Second)
		a.wantFile(file("app"), "three")
		r.stop()
		r.store.Close()
	})
}

func TestConfigEvents(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		defer r.c.feed.attend()()
		next, _ := r.c.feed.from("")
		r.taker("a").come()
		r.pipeline("app", "one")
		r.deleteConfig("app")
		var seen []string
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for {
			es, after, err := r.c.feed.read(ctx, next)
			if err != nil {
				break
			}
			next = after
			for _, e := range es {
				switch {
				case e.Kind == "config" && e.Config.Name == "app":
					seen = append(seen, fmt.Sprint("config ", e.Config.LatestVersion, len(e.Config.Bindings), e.Deleted))
				case e.Kind == "config_status":
					seen = append(seen, fmt.Sprint(e.ConfigStatus.AgentId, " ", e.ConfigStatus.Status, e.ConfigStatus.WantedVersion))
				}
			}
		}
		want := "config 0 0 false,config 1 0 false,config 1 1 false,a APPLYING 1,a APPLIED 1,config 1 1 true,a APPLYING -1,a DELETED -1"
		if got := strings.Join(seen, ","); got != want {
			t.Errorf("events\n%s, want\n%s", got, want)
		}
	})
}
