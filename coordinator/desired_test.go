package coordinator

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent whose tags put it into ever new groups is worked out each time. What is
// kept of that has a limit.
func TestSetsOfManyGroupsAreBounded(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.pipeline("app", "one")
		d, b := r.c.configs.desired, r.c.configs.catalog.bindings()
		long := strings.Repeat("n", 100)
		for n := range 2000 {
			r.c.groups.mu.Lock()
			names := make([]string, 1000)
			for i := range names {
				names[i] = fmt.Sprintf("%s-%d-%03d", long, n, i)
			}
			r.c.groups.byAgent["a"] = names
			r.c.groups.mu.Unlock()
			if got := d.boundOf("a").set; len(got.files) != 1 {
				t.Fatalf("got %v", got)
			}
			kept := 0
			for key := range d.base {
				kept += len(key)
			}
			if kept > maxWantBytes+1<<20 {
				t.Fatalf("%d bytes are kept after %d changes", kept, n)
			}
			if d.from != b {
				t.Fatal("the bindings are the same")
			}
		}
	})
}

// A desired-state pass over a large fleet is short, and an agent's part of it is
// small: agents that shall hold the same share it.
func TestDesiredStateOfManyAgents(t *testing.T) {
	const agents, configs = 2000, 5
	fleetTest(t, func(t *testing.T, r *rig) {
		for i := range agents {
			id := fmt.Sprintf("a%04d", i)
			r.c.adopt(&musterv1.Agent{Id: id, Status: musterv1.Agent_OFFLINE})
		}
		r.group("even", `id.endsWith("0") || id.endsWith("2")`)
		for i := range configs {
			name := fmt.Sprint("c", i)
			r.head(musterv1.Config_PIPELINE, name)
			n := r.version(name, "x")
			r.bind(name, fleetWide(n), forGroup("even", n))
		}
		k := r.c.configs
		sets := map[*wantSet]bool{}
		for _, id := range r.c.fleet.ids() {
			sets[k.desired.of(id)] = true
		}
		if len(sets) != 1 {
			t.Errorf("%d sets for agents that shall hold the same", len(sets))
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		held := make([]*musterv1.ConfigStatus, configs)
		for i := range held {
			held[i] = &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: fmt.Sprint("c", i), Version: 1, RunningVersion: 1, Status: applied}
		}
		for _, id := range r.c.fleet.ids() {
			k.onRegister(id, nil, &musterv1.Register{Configs: held, Capabilities: takesAll})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / agents
		t.Logf("%d bytes an agent with %d configs", each, configs)
		if each > 2<<10 {
			t.Errorf("%d bytes an agent, want at most 2 KiB", each)
		}
	})
}

// BenchmarkDesiredPass is one look at every agent of a fleet of 2,000 with 5
// configs that are all right.
func BenchmarkDesiredPass(b *testing.B) {
	const agents, configs = 2000, 5
	s := store.NewMem(Spaces...)
	c, err := New(b.Context(), s, Config{})
	if err != nil {
		b.Fatal(err)
	}
	heads := map[string]*configHead{}
	var held []*musterv1.ConfigStatus
	for i := range configs {
		name := fmt.Sprint("c", i)
		heads[name] = &configHead{config: &musterv1.Config{Name: name, Kind: musterv1.Config_PIPELINE, Bindings: []*musterv1.Binding{fleetWide(1)}}}
		held = append(held, &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: name, Version: 1, RunningVersion: 1, Status: applied})
	}
	c.configs.catalog.heads = heads
	for i := range agents {
		id := fmt.Sprintf("a%04d", i)
		c.adopt(&musterv1.Agent{Id: id, Status: musterv1.Agent_OFFLINE})
		c.configs.onRegister(id, nil, &musterv1.Register{Configs: held, Capabilities: takesAll})
	}
	for b.Loop() {
		c.configs.catalog.bound = nil // as after a change
		c.configs.look.wakeAll()
		c.configs.round(b.Context())
	}
	c.fleet.stop()
}
