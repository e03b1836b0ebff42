package agentd

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// applier puts the configs in place that this agent is offered. A few are
// applied at a time, each by the steps in application.go; the newest offer of a
// config counts.
type applier struct {
	root  string // absolute
	hooks hooks
	store configStore
	log   *slog.Logger
	quiet *slog.Logger  // for what the coordinator says
	retry time.Duration // after the first attempt that failed
	steps func(string)  // called at each step; may be nil

	mu     sync.Mutex
	held   map[configKey]*heldConfig
	came   uint64
	link   Link // on which the agent is registered; nil: none
	untold map[configKey]bool
	wake   chan struct{} // of run
	full   chan struct{} // of tellRest: the link did not take all
}

const (
	applyAtOnce   = 4        // of different configs
	maxInlineHeld = 64 << 20 // bytes of inline content that wait; more is fetched when its turn comes
)

// newApplier reads what an earlier agent left, and undoes what that did not end.
func newApplier(cfg Config, root string, h hooks, log *slog.Logger) (*applier, error) {
	store, err := openConfigStore(cfg.Dir, log)
	if err != nil {
		return nil, err
	}
	records, err := store.load()
	if err != nil {
		return nil, err
	}
	a := &applier{
		root: root, hooks: h, store: store, log: log, quiet: quietly(log), retry: cfg.retry, steps: cfg.steps,
		held: map[configKey]*heldConfig{}, untold: map[configKey]bool{},
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
	for _, r := range records {
		h := &heldConfig{record: *r}
		a.held[r.key()] = h
		a.recover(h)
		a.look(h)
	}
	return a, nil
}

// run applies configs until ctx ends, and returns when nothing is under way.
func (a *applier) run(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { a.tellRest(ctx) })
	working.Go(func() { a.lookNowAndThen(ctx) })
	ended := make(chan struct{}, applyAtOnce)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	free := applyAtOnce
	for ctx.Err() == nil {
		for ; free > 0; free-- {
			h := a.next()
			if h == nil {
				break
			}
			working.Go(func() {
				a.apply(ctx, h)
				ended <- struct{}{}
			})
		}
		if free > 0 {
			timer.Reset(a.nextDue())
		}
		select {
		case <-a.wake:
		case <-ended:
			free++
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// onOffer takes a config. It does not wait for the disk.
func (a *applier) onOffer(link Link, m *musterv1.ConfigOffer) error {
	key := configKey{m.Kind, m.Name}
	if err := checkKey(key); err != nil {
		return err
	}
	if m.Version == 0 {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "version", Detail: "0 is reserved"}
	}
	o := newOffer(link, m)
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.heldLocked(key)
	if h == nil {
		a.quiet.Warn("config refused", "config", key.String(), "err", errFull)
		_ = link.Send(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{{
			Kind: m.Kind, Name: m.Name, Version: m.Version, Status: musterv1.ConfigStatus_FAILED, Reason: errFull.Error(),
		}}})
		return nil
	}
	apply, retry := h.answer(o)
	if h.waiting = nil; apply {
		at := time.Now()
		if retry {
			at = h.record.again(a.retry, at)
		}
		a.putLocked(h, o, at)
	}
	if h.busy != nil && apply {
		h.busy.supersede()
	}
	a.publishLocked(h)
	return nil
}

// heldLocked is the config of a key, a new one if need be; nil: there are too many.
func (a *applier) heldLocked(key configKey) *heldConfig {
	if h := a.held[key]; h != nil {
		return h
	}
	if len(a.held) >= maxConfigs && !a.forgetLocked() {
		return nil
	}
	h := &heldConfig{record: configRecord{Kind: key.kind, Name: key.name}}
	a.held[key] = h
	return h
}

// forgetLocked makes room: of a config that is gone nothing needs to be known.
func (a *applier) forgetLocked() bool {
	for key, h := range a.held {
		if h.busy == nil && h.waiting == nil && h.record.Status == musterv1.ConfigStatus_DELETED {
			delete(a.held, key)
			return true
		}
	}
	return false
}

func (a *applier) putLocked(h *heldConfig, o *offer, at time.Time) {
	o.again = o.again || h.record.Again && h.record.Last.same(&o.content)
	if o.link != nil && o.Size > 0 && a.inlineLocked()+len(o.bytes) > maxInlineHeld {
		o.bytes, o.here = nil, false
	}
	a.came++
	h.waiting, h.due, h.since = o, at, a.came
	a.wakeUp()
}

// inlineLocked is how much content waits in memory.
func (a *applier) inlineLocked() (n int) {
	for _, h := range a.held {
		if h.waiting != nil {
			n += len(h.waiting.bytes)
		}
	}
	return n
}

// next makes the config busy whose turn it is; nil: none.
func (a *applier) next() (next *heldConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, h := range a.held {
		if h.ready() && !h.due.After(now) && (next == nil || h.since < next.since) {
			next = h
		}
	}
	if next != nil {
		next.busy, next.waiting = next.waiting, nil
	}
	return next
}

// nextDue is how long nothing is to be done.
func (a *applier) nextDue() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := time.Hour
	for _, h := range a.held {
		if h.ready() {
			wait = min(wait, max(0, time.Until(h.due)))
		}
	}
	return wait
}

func (a *applier) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// change makes a new record of a config durable. It is in force even if it could
// not be stored.
func (a *applier) change(h *heldConfig, fn func(r *configRecord)) error {
	r := a.record(h)
	fn(&r)
	err := a.store.save(&r)
	a.mu.Lock()
	defer a.mu.Unlock()
	h.record = r
	return err
}

// commit is change, in force only if it could be stored.
func (a *applier) commit(h *heldConfig, fn func(r *configRecord)) error {
	r := a.record(h)
	fn(&r)
	if err := a.store.save(&r); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.record = r
	return nil
}

func (a *applier) record(h *heldConfig) configRecord {
	a.mu.Lock()
	defer a.mu.Unlock()
	return h.record
}

// claimantLocked is another config that has a path.
func (a *applier) claimantLocked(h *heldConfig, path string) *heldConfig {
	for _, other := range a.held {
		if other != h && slices.Contains(other.record.paths(), path) {
			return other
		}
	}
	return nil
}

func (a *applier) step(name string) {
	if a.steps != nil {
		a.steps(name)
	}
}
