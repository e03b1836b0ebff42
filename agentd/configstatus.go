package agentd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	feedbackAtOnce = 32          // statuses in one message
	feedbackRetry  = time.Second // after the coordinator could not take them
)

// finish notes what came of an attempt.
func (a *applier) finish(h *heldConfig, o *offer, err error) {
	key := h.record.key()
	switch {
	case errors.Is(err, errDropped):
		a.log.Debug("offer of a config dropped", "config", key.String(), "version", o.Version)
	case err != nil:
		a.fail(h, o, err)
	case !o.reload:
		a.store.dropContent(key)
		a.log.Info("config applied", "config", key.String(), "version", o.Version)
	}
	a.look(h)
	a.mu.Lock()
	defer a.mu.Unlock()
	h.busy = nil
	a.resume(h)
	a.publishLocked(h)
	if h.isNothing() {
		delete(a.held, key)
	}
	a.wakeUp()
}

func (a *applier) fail(h *heldConfig, o *offer, err error) {
	key := h.record.key()
	again := !errors.As(err, new(lasting))
	a.log.Warn("config not applied", "config", key.String(), "version", o.Version, "err", err, "again", again)
	serr := a.change(h, func(r *configRecord) {
		if r.Trying == nil {
			r.try(&o.content, time.Now())
		}
		r.fail(&o.content, err.Error(), again)
	})
	if serr != nil {
		a.log.Error("record of a config", "config", key.String(), "err", serr)
	}
	if !again {
		a.store.dropContent(key)
	}
}

// report is what Register tells: every config that is held or was tried.
func (a *applier) report() (all []*musterv1.ConfigStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.untold)
	for _, h := range a.held {
		if s := h.status(); s.Version != 0 {
			all = append(all, s)
			h.told, h.reported = s, s
		}
	}
	slices.SortFunc(all, func(x, y *musterv1.ConfigStatus) int {
		return strings.Compare(configKey{x.Kind, x.Name}.file(), configKey{y.Kind, y.Name}.file())
	})
	return all
}

// withoutReasons is for a Register that has no room for them.
func withoutReasons(all []*musterv1.ConfigStatus) []*musterv1.ConfigStatus {
	short := make([]*musterv1.ConfigStatus, len(all))
	for i, s := range all {
		short[i] = &musterv1.ConfigStatus{Kind: s.Kind, Name: s.Name, Version: s.Version, Status: s.Status, RunningVersion: s.RunningVersion}
	}
	return short
}

// owe says that the Register had no room for some: they are told in messages of
// their own as soon as the agent is registered.
func (a *applier) owe(left []*musterv1.ConfigStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range left {
		a.untold[configKey{s.Kind, s.Name}] = true
	}
}

// use tells on a link from now on. What changed while the Register was on its way
// is told after it, even if it was told before.
func (a *applier) use(link Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.link = link
	for key, h := range a.held {
		if !proto.Equal(h.status(), h.reported) {
			a.untold[key] = true
		}
	}
	a.tellLocked()
}

// gone forgets a link, and what was to be fetched on it.
func (a *applier) gone(link Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link == link {
		a.link = nil
	}
	for key, h := range a.held {
		if h.waiting != nil && h.waiting.link == link && !h.waiting.here && h.waiting.Version != deletedVersion {
			h.waiting = nil
			if h.busy == nil {
				a.resume(h)
			}
			if h.isNothing() {
				delete(a.held, key)
			}
		}
	}
}

// publishLocked tells at once where a config stands, if that is not as it was
// told (N83).
func (a *applier) publishLocked(h *heldConfig) {
	if !proto.Equal(h.status(), h.told) {
		a.untold[h.record.key()] = true
		a.tellLocked()
	}
}

// tellLocked tells what is not told yet, as far as the link takes it.
func (a *applier) tellLocked() {
	for a.link != nil && len(a.untold) > 0 {
		m := &musterv1.ConfigFeedback{}
		var keys []configKey
		for key := range a.untold {
			if len(keys) == feedbackAtOnce {
				break
			}
			keys = append(keys, key)
			m.Configs = append(m.Configs, a.statusLocked(key))
		}
		err := a.link.Send(m)
		if errors.Is(err, bus.ErrQueueFull) {
			select {
			case a.full <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
		for i, key := range keys {
			delete(a.untold, key)
			if h := a.held[key]; h != nil {
				h.told = m.Configs[i]
			}
		}
	}
}

func (a *applier) statusLocked(key configKey) *musterv1.ConfigStatus {
	if h := a.held[key]; h != nil {
		return h.status()
	}
	return &musterv1.ConfigStatus{Kind: key.kind, Name: key.name}
}

// onRefused is called when the coordinator could not take a ConfigFeedback: all
// is told again.
func (a *applier) onRefused() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.held {
		a.untold[key] = true
	}
	select {
	case a.full <- struct{}{}:
	default:
	}
}

// tellRest goes on telling when a link could not take all.
func (a *applier) tellRest(ctx context.Context) {
	for {
		select {
		case <-a.full:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(feedbackRetry):
		case <-ctx.Done():
			return
		}
		a.mu.Lock()
		a.tellLocked()
		a.mu.Unlock()
	}
}
