package coordinator

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of groups.
const (
	maxGroups      = 1000
	maxGroupAgents = 10_000
	maxGroupRow    = 200 << 10 // bytes, so that the row stays under the store's 256 KiB
	maxDescription = 1024
)

// groups holds every group with its members of now. It follows the group rows
// of the store and the facts of the agents: an agent is looked at again when its
// facts have changed, never when it beats. Its methods may be called concurrently,
// but, except touch and touchStatus, not while fleet.mu is held.
type groups struct {
	c        *Coordinator
	changing sync.Mutex              // held while an operator's change of a group is stored
	onChange []func(agents []string) // told who is in other groups now; must not wait, nor ask groups

	work sync.Mutex // one computation at a time; taken before mu and fleet.mu

	mu      sync.RWMutex
	byName  map[string]*group
	byAgent map[string][]string // group names, sorted; never changed, only replaced
	pending map[string]touched  // agents to look at
	status  int                 // groups that name the status
	wake    chan struct{}       // cap 1
}

// group is one group. Its members are guarded by groups.mu, the rest is never changed.
type group struct {
	row     *musterv1.Group
	expr    *expression // nil: only those named
	members map[string]struct{}
}

// touched says what of an agent may be different.
type touched uint8

const (
	touchedStatus touched = 1 + iota
	touchedFacts          // anything
)

func newGroups(c *Coordinator) *groups {
	return &groups{c: c, byName: map[string]*group{}, byAgent: map[string][]string{}, pending: map[string]touched{}, wake: make(chan struct{}, 1)}
}

// of returns the names of the groups that an agent is in, sorted, as of its
// facts of now. The slice is shared and must not be changed.
func (g *groups) of(agent string) []string {
	g.mu.RLock()
	_, late := g.pending[agent]
	names := g.byAgent[agent]
	g.mu.RUnlock()
	if !late {
		return names
	}
	g.look(agent)
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byAgent[agent]
}

// members returns the known agents that are in a group, sorted, and whether
// there is such a group.
func (g *groups) members(name string) (agents []string, ok bool) {
	g.lookAll()
	g.mu.RLock()
	defer g.mu.RUnlock()
	gr := g.byName[name]
	if gr == nil {
		return nil, false
	}
	agents = make([]string, 0, len(gr.members))
	for id := range gr.members {
		agents = append(agents, id)
	}
	slices.Sort(agents)
	return agents, true
}

// has reports whether there is a group of that name.
func (g *groups) has(name string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byName[name] != nil
}

// view is the group as operators see it, or nil.
func (g *groups) view(name string) *musterv1.Group {
	g.mu.RLock()
	defer g.mu.RUnlock()
	gr := g.byName[name]
	if gr == nil {
		return nil
	}
	v := proto.CloneOf(gr.row)
	v.Size = uint32(len(gr.members))
	return v
}

// names returns the names of all groups, sorted.
func (g *groups) names() []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	names := make([]string, 0, len(g.byName))
	for n := range g.byName {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// hook follows the rows of the groups.
func (g *groups) hook() configHook {
	return configHook{prefix: groupPrefix, all: g.load, change: g.change}
}

// load makes the groups from their rows. Who is in them is worked out agent by
// agent: by run, or when somebody asks.
func (g *groups) load(rows []store.KV) {
	byName := map[string]*group{}
	for _, kv := range rows {
		gr, err := g.read(kv)
		if err != nil {
			g.c.log.Error("group not read; it has no members", "err", err)
			continue
		}
		byName[gr.row.Name] = gr
	}
	ids := g.c.fleet.ids()
	g.work.Lock()
	defer g.work.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byName = byName
	g.countStatusLocked()
	for _, id := range ids {
		g.pending[id] = touchedFacts
	}
	for id := range g.byAgent {
		g.pending[id] = touchedFacts
	}
	g.wakeUp()
}

// read makes a group from its row. One whose expression cannot be compiled, as
// one of another version of this program, has its named members only.
func (g *groups) read(kv store.KV) (*group, error) {
	row := &musterv1.Group{}
	if err := decode(kv.Key, kv.Value, row); err != nil {
		return nil, err
	}
	row.Etag = etagOf(kv.Value)
	gr, err := newGroup(row)
	if err != nil {
		g.c.log.Error("group has its named members only", "group", row.Name, "err", err)
	}
	return gr, nil
}

// newGroup makes a group without members. With an error, it has no expression.
func newGroup(row *musterv1.Group) (gr *group, err error) {
	gr = &group{row: row, members: map[string]struct{}{}}
	if row.Where != "" {
		gr.expr, err = compile(agentEnv(), "where", row.Where)
	}
	return gr, err
}

// change applies one row that was put or deleted: the members of that group are
// worked out at once.
func (g *groups) change(e store.Event) {
	if e.Deleted {
		name, _ := splitKey(e.Key, groupPrefix)
		last := g.view(name)
		g.tell(g.replace(name, nil))
		if last != nil {
			g.c.feed.publish(&musterv1.Event{Kind: "group", Group: last, Deleted: true})
		}
		return
	}
	gr, err := g.read(e.KV)
	if err != nil {
		g.c.log.Error("group not read; it stays as it was", "err", err)
		return
	}
	g.tell(g.replace(gr.row.Name, gr))
	g.c.feed.publish(&musterv1.Event{Kind: "group", Group: g.view(gr.row.Name)})
}

// run looks at agents whose facts have changed, until ctx ends.
func (g *groups) run(ctx context.Context) error {
	for {
		select {
		case <-g.wake:
			g.lookAll()
		case <-ctx.Done():
			return nil
		}
	}
}

func (g *groups) wakeUp() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}
