package coordinator

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configs brings to agents what they shall hold, and keeps what they say of it.
//
//	bindings, groups, rollouts → desired → offers → agent
//	agent → Register, ConfigFeedback → holdings → the store, rollouts, events
//
// What an agent shall hold is worked out when something it depends on changes.
// It is offered to it when what it says it holds is different.
//
// What an agent holds and shall not hold is taken away only if it is known to be
// of this store: it was wanted of that agent before, or it is a version that
// this store has given, of a config that is there or was deleted. Anything else
// is left alone, so that a coordinator with an empty store deletes nothing. And
// what this store has not seen an agent take is offered once, although the number
// of the version is right: it may be a version of another store.
type configs struct {
	c        *Coordinator
	m        *configMetrics
	catalog  *catalog
	desired  *desired
	rollouts overrides
	offers   *offerings
	fetches  *fetches
	look     *worklist
	untidy   chan struct{} // cap 1: there may be versions to remove

	changing sync.Mutex // held while a change of a head or a version is stored
	diffing  sync.Mutex // held while versions are compared

	mu       sync.Mutex
	holdings map[string]*holding // by agent
	unsaved  map[string]struct{}
}

// overrides is what configs ask of rollouts. Its methods are called often, from
// many goroutines, and must not wait for anything but memory.
type overrides interface {
	// version returns the version that an agent shall have of a config for which
	// its bindings say bound; 0: it shall not have the config. When the answer
	// changes, configs.look is to be woken for that agent.
	version(agent, config string, bound int32) int32
	// needs reports whether a version is in use by a rollout, and must be kept.
	needs(config string, version int32) bool
	// statusChanged tells what an agent said about configs, in the versions of
	// the configs also for INSTANCE ones. No lock is held.
	statusChanged(agent string, statuses []*musterv1.ConfigStatus)
}

func newConfigs(c *Coordinator) *configs {
	k := &configs{c: c, m: newConfigMetrics(c.cfg.Metrics), catalog: newCatalog(c), rollouts: c.rollouts, look: newWorklist(),
		untidy: make(chan struct{}, 1), holdings: map[string]*holding{}, unsaved: map[string]struct{}{}}
	k.desired = newDesired(k)
	k.offers = newOfferings(k)
	k.fetches = newFetches(k)
	return k
}

// run offers and serves configs until ctx ends.
func (k *configs) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.offerLoop(ctx) })
	g.Go(func() error { return k.fetches.run(ctx) })
	g.Go(func() error { return k.tidyLoop(ctx) })
	return g.Wait()
}

func (k *configs) offerLoop(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	k.look.wakeAll()
	for {
		select {
		case <-k.look.woken:
			pause(ctx, offerDelay)
			k.round(ctx)
		case now := <-tick.C:
			k.look.wakeDue(now)
			k.saveAgain()
		case <-ctx.Done():
			return nil
		}
	}
}

// round looks once at each agent that something has changed for.
func (k *configs) round(ctx context.Context) {
	agents, all := k.look.take()
	if all {
		for _, id := range k.c.fleet.ids() {
			agents[id] = struct{}{}
		}
	}
	for id := range agents {
		if ctx.Err() != nil {
			return
		}
		k.serve(ctx, id)
	}
}

// holdingLocked returns what is known of an agent, made if need be.
func (k *configs) holdingLocked(agent string) *holding {
	o := k.holdings[agent]
	if o == nil {
		o = &holding{want: emptyWant}
		k.holdings[agent] = o
	}
	return o
}

// forget drops what is known of an agent that is no longer known. Its row of
// held configs is the caller's to delete.
func (k *configs) forget(agent string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.holdings, agent)
	delete(k.unsaved, agent)
}
