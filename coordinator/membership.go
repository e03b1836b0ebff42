package coordinator

import (
	"context"
	"slices"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// touch notes that an agent's facts may have changed, or that it is gone: its
// groups are worked out again. It never waits.
func (g *groups) touch(agent string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending[agent] = touchedFacts
	g.wakeUp()
}

// touchStatus is touch for an agent whose status alone has changed: it costs
// nothing unless a group asks for the status.
func (g *groups) touchStatus(agent string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.status == 0 {
		return
	}
	g.pending[agent] = max(g.pending[agent], touchedStatus)
	g.wakeUp()
}

// look works out which groups one agent is in.
func (g *groups) look(agent string) {
	if g.settle(agent) {
		g.tell([]string{agent})
	}
}

// lookAll works out the groups of every agent that was touched. It ends although
// agents are touched all the time: those of later are left for later.
func (g *groups) lookAll() {
	g.mu.RLock()
	agents := make([]string, 0, len(g.pending))
	for id := range g.pending {
		agents = append(agents, id)
	}
	g.mu.RUnlock()
	for part := range slices.Chunk(agents, 256) {
		g.tell(slices.DeleteFunc(part, func(id string) bool { return !g.settle(id) }))
	}
}

// settle works out the groups of an agent that was touched, and reports whether
// they are others than before.
func (g *groups) settle(agent string) bool {
	g.work.Lock()
	defer g.work.Unlock()
	g.mu.Lock()
	what := g.pending[agent]
	delete(g.pending, agent) // before its facts are read: who touches it now is heard
	g.mu.Unlock()
	if what == 0 {
		return false
	}
	a := g.c.fleet.facts(agent)
	var names []string
	for _, gr := range g.byName { // only changed with work held
		if g.holds(gr, agent, a, what) {
			names = append(names, gr.row.Name)
		}
	}
	slices.Sort(names)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setLocked(agent, names)
}

// holds reports whether an agent belongs to a group. Of one whose status alone
// has changed, the answer is known unless the group asks for the status.
func (g *groups) holds(gr *group, agent string, a *musterv1.Agent, what touched) bool {
	if what == touchedStatus && (gr.expr == nil || !gr.expr.refs["status"]) {
		_, in := gr.members[agent]
		return in
	}
	in, err := gr.matches(context.Background(), a)
	if err != nil {
		g.c.metrics.dropped("group_member")
		g.c.warn("an agent is no member of a group: its expression costs too much for it", "group", gr.row.Name, "agent", agent, "err", err)
	}
	return in
}

// matches reports whether an agent belongs to the group; nil does not.
func (gr *group) matches(ctx context.Context, a *musterv1.Agent) (bool, error) {
	if a == nil {
		return false, nil
	}
	if _, named := slices.BinarySearch(gr.row.Agents, a.Id); named {
		return true, nil
	}
	if gr.expr == nil {
		return false, nil
	}
	return gr.expr.matches(ctx, agentVars(a))
}

// replace puts a group, or none, in the place of the one of that name, and
// returns the agents that joined or left.
func (g *groups) replace(name string, gr *group) (changed []string) {
	g.work.Lock()
	defer g.work.Unlock()
	if gr != nil {
		for _, id := range g.c.fleet.ids() {
			if g.holds(gr, id, g.c.fleet.facts(id), touchedFacts) {
				gr.members[id] = struct{}{}
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.byName[name]
	delete(g.byName, name)
	if gr != nil {
		g.byName[name] = gr
	}
	g.countStatusLocked()
	for id := range union(old, gr) {
		names := slices.DeleteFunc(slices.Clone(g.byAgent[id]), func(n string) bool { return n == name })
		if gr.hasMember(id) {
			i, _ := slices.BinarySearch(names, name)
			names = slices.Insert(names, i, name)
		}
		if g.setLocked(id, names) {
			changed = append(changed, id)
		}
	}
	return changed
}

// tryOut returns who would be in a group, sorted. It is an error when the
// expression costs too much for an agent, or takes too long for all.
func (g *groups) tryOut(ctx context.Context, gr *group) (in []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, selectorTime)
	defer cancel()
	for _, id := range g.c.fleet.ids() {
		ok, err := gr.matches(ctx, g.c.fleet.facts(id))
		if err != nil {
			return nil, invalid("where", "%v", err)
		}
		if ok {
			in = append(in, id)
		}
	}
	return in, nil
}

// setLocked stores which groups an agent is in, on both sides, and reports
// whether they are others than before. mu and work are held.
func (g *groups) setLocked(agent string, names []string) bool {
	before := g.byAgent[agent]
	if len(names) == 0 {
		delete(g.byAgent, agent)
	} else {
		g.byAgent[agent] = names
	}
	for _, n := range before {
		if gr := g.byName[n]; gr != nil && !slices.Contains(names, n) {
			delete(gr.members, agent)
		}
	}
	for _, n := range names {
		g.byName[n].members[agent] = struct{}{}
	}
	return !slices.Equal(before, names)
}

func (g *groups) countStatusLocked() {
	g.status = 0
	for _, gr := range g.byName {
		if gr.expr != nil && gr.expr.refs["status"] {
			g.status++
		}
	}
}

// tell says that agents are in other groups than before.
func (g *groups) tell(agents []string) {
	if len(agents) == 0 {
		return
	}
	for _, fn := range g.onChange {
		fn(agents)
	}
}

func (gr *group) hasMember(id string) bool {
	if gr == nil {
		return false
	}
	_, ok := gr.members[id]
	return ok
}

// union returns the members of both; a nil group has none.
func union(a, b *group) map[string]struct{} {
	all := map[string]struct{}{}
	for _, gr := range []*group{a, b} {
		if gr == nil {
			continue
		}
		for id := range gr.members {
			all[id] = struct{}{}
		}
	}
	return all
}
