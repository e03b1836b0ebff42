package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configRollouts holds every rollout of a config that has not ended. It follows
// the rows of rollouts; whom they have reached it writes itself, before configs
// are told, and reads again when the coordinator starts. The promises:
//
//   - An agent is offered the new version only when a row says so.
//   - Nobody more is reached by a rollout that has failed too often, whatever
//     happens to the coordinator.
//   - A config has at most one rollout that has not ended.
//
// Its methods may be called concurrently.
type configRollouts struct {
	c        *Coordinator
	woken    chan struct{} // cap 1: there may be something to do
	deciding sync.Mutex    // held while a decision about a rollout is stored; taken before configs.changing

	mu     sync.Mutex
	open   map[string]*configRollout // by id
	of     map[string]*configRollout // by config: the one in force
	fresh  map[string][]string       // targets of rollouts that are about to be stored
	unread []store.KV                // rows whose targets could not be read
	closed []string                  // ended, and not tidied yet
}

// configRollout is a rollout that has not ended. What follows the id never
// changes; the places are changed by the loop alone, with configRollouts.mu held;
// what else others may see is guarded by it.
type configRollout struct {
	id, config string
	kind       musterv1.Config_Kind
	version    int32
	groups     []string      // the bindings it is about; none: all
	targets    []string      // sorted
	answer     time.Duration // in which a target that is there must say a word
	ended      chan struct{} // closed when it has ended

	row      *musterv1.ConfigRollout // as it is stored; never changed, only replaced
	backFrom time.Time               // since when it goes back
	unsure   map[int]rolloutWord     // places to look at again
	all      bool                    // likewise, every one
	holdUp   string                  // what it waits for, when that takes long
	at       []rolloutPlace          // one for each target

	// Of the loop alone.
	plan    *plan
	written int                     // rows of offers
	known   bool                    // all were looked at since it was read …
	looked  time.Time               // … last at this time
	head    *musterv1.Config        // whose bindings were looked at last
	told    *musterv1.ConfigRollout // by the last event …
	tellAt  time.Time               // … and not again before
}

func newConfigRollouts(c *Coordinator) *configRollouts {
	return &configRollouts{c: c, woken: make(chan struct{}, 1), open: map[string]*configRollout{}, of: map[string]*configRollout{}, fresh: map[string][]string{}}
}

// version returns the version that an agent shall have of a config for which its
// bindings say bound; 0: none.
func (rs *configRollouts) version(agent, config string, bound int32) int32 {
	if bound == 0 {
		return 0
	}
	rs.mu.Lock()
	r, pinned := rs.of[config], int32(0)
	if r != nil {
		pinned = r.pinLocked(agent)
	}
	rs.mu.Unlock()
	if pinned == 0 || len(r.groups) > 0 && !rs.concerned(r, agent) {
		return bound
	}
	return pinned
}

// pinLocked returns the version that a target shall have instead of the bound
// one; 0: none.
func (r *configRollout) pinLocked(agent string) int32 {
	i, ok := slices.BinarySearch(r.targets, agent)
	switch {
	case !ok || !r.at[i].reached():
		return 0
	case goesBack(r.row):
		return r.at[i].previous
	default:
		return r.version
	}
}

// goesBack reports whether those that a rollout has reached shall have their
// earlier version.
func goesBack(row *musterv1.ConfigRollout) bool {
	return row.State == musterv1.ConfigRollout_ABORTED || row.State == musterv1.ConfigRollout_HALTED && !row.KeepOnHalt
}

// needs reports whether a version is in use by a rollout, and must be kept.
func (rs *configRollouts) needs(config string, version int32) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.of[config]
	if r == nil {
		return false
	}
	return r.version == version || slices.ContainsFunc(r.at, func(p rolloutPlace) bool { return p.previous == version })
}

// statusChanged takes what an agent says about configs.
func (rs *configRollouts) statusChanged(agent string, statuses []*musterv1.ConfigStatus) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, s := range statuses {
		if r := rs.of[s.Name]; r != nil && r.kind == s.Kind {
			rs.doubtLocked(r, agent, wordOf(s, r.version))
		}
	}
}

// groupsChanged takes that agents are in other groups than before, or gone.
func (rs *configRollouts) groupsChanged(agents []string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.of {
		for _, a := range agents {
			rs.doubtLocked(r, a, rolloutWord{})
		}
	}
}

// doubtLocked has a target looked at again, if the agent is one. A last word
// counts, although the agent may have gone back when the loop comes.
func (rs *configRollouts) doubtLocked(r *configRollout, agent string, w rolloutWord) {
	i, ok := slices.BinarySearch(r.targets, agent)
	if !ok {
		return
	}
	if had := r.unsure[i]; w.state < had.state {
		w = had
	}
	r.unsure[i] = w
	rs.wakeUp()
}

func (rs *configRollouts) wakeUp() {
	select {
	case rs.woken <- struct{}{}:
	default:
	}
}

// hook follows the rows of rollouts. They come after those of configs, so that
// the end of a rollout finds the bindings that it moved.
func (rs *configRollouts) hook() configHook {
	return configHook{prefix: rolloutPrefix, all: rs.load, change: rs.change}
}

func (rs *configRollouts) load(rows []store.KV) {
	for _, kv := range rows {
		rs.take(kv)
	}
}

func (rs *configRollouts) change(e store.Event) {
	if e.Deleted {
		return // an old one
	}
	if row := rs.take(e.KV); row != nil {
		rs.c.feed.publish(&musterv1.Event{Kind: "rollout", Rollout: row})
	}
}

// take brings a row into memory and returns the rollout as it is now, or nil.
func (rs *configRollouts) take(kv store.KV) *musterv1.ConfigRollout {
	row := &musterv1.ConfigRollout{}
	if err := decode(kv.Key, kv.Value, row); err != nil {
		rs.c.log.Error("rollout not read; agents get what their bindings say", "err", err)
		return nil
	}
	if row.EndTime != nil {
		rs.close(row)
		return row
	}
	rs.mu.Lock()
	r := rs.open[row.Id]
	rs.mu.Unlock()
	if r == nil {
		var err error
		if r, err = rs.read(row); err != nil {
			rs.c.log.Error("rollout not read; until it is, agents get what their bindings say", "rollout", row.Id, "err", err)
			rs.mu.Lock()
			defer rs.mu.Unlock()
			rs.unread = append(rs.unread, kv)
			return row
		}
	}
	return rs.put(r, row)
}

// readAgain tries again what could not be read, unless the row has changed since.
func (rs *configRollouts) readAgain(ctx context.Context) {
	rs.mu.Lock()
	rows := rs.unread
	rs.unread = nil
	rs.mu.Unlock()
	if len(rows) == 0 {
		return
	}
	rs.deciding.Lock() // nobody supersedes what is put in force
	defer rs.deciding.Unlock()
	for _, kv := range rows {
		now, err := rs.c.store.Get(ctx, spaceConfig, kv.Key)
		if err != nil {
			rs.mu.Lock()
			rs.unread = append(rs.unread, kv)
			rs.mu.Unlock()
		} else if now[0].Rev == kv.Rev {
			rs.take(kv)
		}
	}
}

// put puts a row in force.
func (rs *configRollouts) put(r *configRollout, row *musterv1.ConfigRollout) *musterv1.ConfigRollout {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	was := r.row.State
	r.row = row
	if was != row.State || rs.open[r.id] == nil {
		r.all = true
		r.backFrom = time.Time{}
		if goesBack(row) {
			r.backFrom = time.Now()
		}
	}
	rs.open[r.id], rs.of[r.config] = r, r
	rs.wakeUp()
	rs.c.configs.look.wake(r.reached()...)
	return r.view()
}

// close takes what has ended out of force.
func (rs *configRollouts) close(row *musterv1.ConfigRollout) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.closed = append(rs.closed, row.Id)
	rs.wakeUp()
	r := rs.open[row.Id]
	if r == nil {
		return
	}
	delete(rs.open, row.Id)
	if rs.of[r.config] == r {
		delete(rs.of, r.config)
	}
	rs.c.configs.look.wake(r.reached()...)
	close(r.ended)
	rs.c.log.Info("rollout ended", "rollout", r.id, "config", r.config, "version", row.Version, "state", row.State.String(), "reason", row.StateReason)
}

// read makes a rollout of its row, its targets, and whom it has reached.
func (rs *configRollouts) read(row *musterv1.ConfigRollout) (*configRollout, error) {
	ctx := context.Background() // as far as it goes, the follower may not go on without it
	targets, err := rs.targetsOf(ctx, row.Id)
	if err != nil {
		return nil, err
	}
	r := &configRollout{id: row.Id, config: row.Config, kind: rs.c.configs.catalog.head(row.Config).GetKind(), version: row.Version, row: row, groups: row.Groups, targets: targets,
		at: make([]rolloutPlace, len(targets)), unsure: map[int]rolloutWord{}, ended: make(chan struct{})}
	if r.plan, err = rolloutPlan(row.Plan, len(targets)); err != nil {
		return nil, err
	}
	if r.answer, err = rs.answerTime(ctx, r); err != nil {
		return nil, err
	}
	for i := range r.at {
		r.at[i].state = musterv1.RolloutTarget_WAITING
	}
	err = rs.c.each(ctx, spaceConfig, offeredPrefix+row.Id+"/", func(kv store.KV) error {
		offers := &musterv1.RolloutOffers{}
		if err := decode(kv.Key, kv.Value, offers); err != nil {
			return err
		}
		r.written++
		r.reach(offers)
		return nil
	})
	if err != nil || !goesBack(row) {
		return r, err
	}
	outcome, err := rs.outcomeOf(ctx, row.Id)
	for _, t := range outcome {
		if i, ok := slices.BinarySearch(targets, t.AgentId); ok && r.at[i].reached() {
			r.at[i].state, r.at[i].reason = t.State, t.Reason
		}
	}
	return r, err
}

// targetsOf returns the targets of a rollout that is about to be stored, or was.
func (rs *configRollouts) targetsOf(ctx context.Context, id string) ([]string, error) {
	rs.mu.Lock()
	targets, ok := rs.fresh[id]
	delete(rs.fresh, id)
	rs.mu.Unlock()
	if ok {
		return targets, nil
	}
	return targetList(ctx, rs.c.store, id)
}

// outcomeOf reads where the targets stood when a rollout went back or ended.
func (rs *configRollouts) outcomeOf(ctx context.Context, id string) (targets []*musterv1.RolloutTarget, err error) {
	err = rs.c.each(ctx, spaceBulk, outcomePrefix+id+"/", func(kv store.KV) error {
		row := &musterv1.RolloutOutcome{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			return err
		}
		targets = append(targets, row.Targets...)
		return nil
	})
	return targets, err
}

// concerned reports whether an agent has the config by one of the bindings that
// the rollout is about.
func (rs *configRollouts) concerned(r *configRollout, agent string) bool {
	if !rs.c.fleet.knows(agent) {
		return false
	}
	bindings := rs.c.configs.catalog.head(r.config).GetBindings()
	return isConcerned(bindingOf(bindings, agent, rs.c.groups.of(agent)), r.groups)
}

// isConcerned reports whether a binding is one of those of these groups; none
// are all bindings.
func isConcerned(b *musterv1.Binding, groups []string) bool {
	return b != nil && (len(groups) == 0 || b.Group != "" && slices.Contains(groups, b.Group))
}

// view is the rollout as operators see it. mu is held.
func (r *configRollout) view() *musterv1.ConfigRollout {
	v := proto.CloneOf(r.row)
	v.Counts = r.shownCounts(false)
	if v.State == musterv1.ConfigRollout_RUNNING && r.holdUp != "" {
		v.StateReason = r.holdUp
	}
	return v
}
