package coordinator

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Offers wait for a moment, so that of many changes in a row the newest counts.
// One that is not answered is made again, later each time.
const (
	offerDelay    = 50 * time.Millisecond
	offerAgain    = 30 * time.Second
	offerAtLatest = 10 * time.Minute
)

// offerKey names what is offered.
type offerKey struct {
	kind    musterv1.Config_Kind
	name    string
	version int32
}

// serve works out what an agent shall hold, and offers what is different.
func (k *configs) serve(ctx context.Context, agent string) {
	s := k.c.fleet.readySession(agent)
	want := k.desired.of(agent)
	now := time.Now()
	k.mu.Lock()
	if k.holdings[agent] == nil && (want == emptyWant || !k.c.fleet.knows(agent)) {
		k.mu.Unlock()
		return
	}
	o := k.holdingLocked(agent)
	if o.want.key != want.key {
		o.want = want
		o.markOurs()
	}
	var due []offerKey
	var next time.Time
	var sure bool
	if s != nil && s == o.session {
		due, next, sure = k.dueLocked(o, now)
	}
	k.mu.Unlock()
	if sure {
		k.save(agent)
	}
	for i, key := range due {
		if !k.offer(ctx, agent, s, key, want) {
			k.withdraw(agent, s, due[i:])
			return
		}
	}
	if !next.IsZero() {
		k.look.wakeAt(next, agent)
	}
}

// dueLocked returns what to offer now, and notes that it is offered. next is
// when it is worth asking again; zero: no need. sure says that there is something
// to be stored.
func (k *configs) dueLocked(o *holding, now time.Time) (due []offerKey, next time.Time, sure bool) {
	missing := k.missingLocked(o)
	o.offers = slices.DeleteFunc(o.offers, func(f offer) bool { return !o.open(f, missing) })
	for _, key := range missing {
		f := o.offered(key.kind, key.name)
		if f == nil {
			o.offers = append(o.offers, offer{kind: key.kind, name: key.name})
			f = &o.offers[len(o.offers)-1]
		}
		if f.version != key.version {
			*f = offer{kind: key.kind, name: key.name, version: key.version}
		}
		if f.tries > 0 && !now.Before(f.again) && o.confirm(key) {
			sure = true
			continue
		}
		if !now.Before(f.again) {
			due = append(due, key)
			f.again = now.Add(min(offerAgain<<min(f.tries, 8), offerAtLatest))
			f.tries++
		}
		if next.IsZero() || f.again.Before(next) {
			next = f.again
		}
	}
	return due, next, sure
}

// confirm notes that a version is the one of this store, when it had been
// offered and the agent has said nothing: it would have told of a difference.
func (o *holding) confirm(key offerKey) bool {
	if o.standing(key.kind, key.name, key.version) != standsUnsure {
		return false
	}
	h, _ := o.find(key.kind, key.name)
	h.sure = true
	o.put(h)
	return true
}

// missingLocked is the difference between what an agent shall hold and what it
// says it holds, as far as it takes such configs.
func (k *configs) missingLocked(o *holding) (missing []offerKey) {
	add := func(kind musterv1.Config_Kind, name string, version int32) {
		if !takesConfigs(o.caps, kind) {
			return
		}
		if s := o.standing(kind, name, version); s == standsNot || s == standsUnsure {
			missing = append(missing, offerKey{kind, name, version})
		}
	}
	for _, ref := range o.want.files {
		add(musterv1.Config_PIPELINE, ref.name, ref.version)
	}
	if o.want.doc != 0 {
		add(musterv1.Config_INSTANCE, instanceName, o.want.doc)
	}
	for _, h := range o.held {
		if takesConfigs(o.caps, h.kind) && k.toGo(o.want, h) && !h.gone() {
			missing = append(missing, offerKey{h.kind, h.name, deletedVersion})
		}
	}
	return missing
}

// toGo reports whether an agent shall not have what it holds. What this store
// cannot know to be its own is left alone.
func (k *configs) toGo(want *wantSet, h heldConfig) bool {
	if want.version(h.kind, h.name) != 0 {
		return false
	}
	return h.ours || k.wasGiven(h.kind, h.name, h.version) || k.wasGiven(h.kind, h.name, h.running)
}

// open reports whether an offer is not settled: one of that name is missing, or
// is being applied. So what is offered again is always offered later.
func (o *holding) open(f offer, missing []offerKey) bool {
	for _, m := range missing {
		if m.kind == f.kind && m.name == f.name {
			return true
		}
	}
	return o.standing(f.kind, f.name, f.version) == standsStarted
}

// offer sends one offer, and reports whether to go on with others.
func (k *configs) offer(ctx context.Context, agent string, s *session, key offerKey, want *wantSet) bool {
	x, err := k.offers.get(ctx, key, want)
	if errors.As(err, new(unmergeable)) {
		k.rollouts.statusChanged(agent, k.unmerged(agent, want))
		return true
	}
	if err != nil {
		k.c.warn("config not offered; it is tried again", "agent", agent, "config", key.name, "version", key.version, "err", err)
		return true
	}
	switch err := s.peer.SendFrames(x.frames); {
	case err == nil:
		k.m.offers.Inc()
		return true
	case errors.Is(err, bus.ErrQueueFull):
		s.whenDrained("configs", func() { k.look.wake(agent) })
		return false
	default:
		return false // the link is gone: the next one is looked at
	}
}

// withdraw notes that these were not offered after all.
func (k *configs) withdraw(agent string, s *session, keys []offerKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	if o == nil || o.session != s {
		return
	}
	for _, key := range keys {
		if f := o.offered(key.kind, key.name); f != nil && f.version == key.version {
			f.again, f.tries = time.Time{}, 0
		}
	}
}

// canTake reports whether an agent can be offered a config now.
func (k *configs) canTake(agent string, kind musterv1.Config_Kind) bool {
	s := k.c.fleet.readySession(agent)
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	return s != nil && o != nil && o.session == s && takesConfigs(o.caps, kind)
}

// readySession returns the session to offer configs by, or nil: the agent is not
// ONLINE, or under maintenance.
func (f *fleet) readySession(id string) *session {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if a := f.agents[id]; a != nil && a.status == musterv1.Agent_ONLINE && !a.row.GetMaintenance() {
		return a.session
	}
	return nil
}

// whyNotOffered says why an agent cannot be offered a config now: "is OFFLINE".
func (f *fleet) whyNotOffered(id string, kind musterv1.Config_Kind) string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch a := f.agents[id]; {
	case a == nil:
		return "is not known"
	case a.status != musterv1.Agent_ONLINE:
		return "is " + a.status.String()
	case a.row.GetMaintenance():
		return "is under maintenance"
	case !takesConfigs(a.row.GetCapabilities(), kind):
		return "takes no " + kind.String() + " configs"
	default:
		return "is being registered"
	}
}
