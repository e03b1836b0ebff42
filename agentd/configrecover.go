package agentd

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/musterhq/muster/plugin"
)

// recover ends what an earlier agent left under way. A version whose files were
// being moved is taken back: it may be what that agent died of.
func (a *applier) recover(h *heldConfig) {
	t, key := h.record.Trying, h.record.key()
	a.sweepPaths(h)
	if t == nil {
		a.resume(h)
		return
	}
	plugin.KillLeft(plugin.Group{}, marker(t.Mark), leftoverWait)
	if t.Version == deletedVersion {
		a.putLocked(h, retry(&content{Version: deletedVersion}), time.Now())
		return
	}
	why, again := "the agent ended while it was being applied", true
	if t.Placed {
		undone, err := undo(a.root, key, t)
		if undone {
			why, again = "the agent ended when it was in place and before its program had accepted it; what was there before is back", false
		}
		if err != nil {
			why, again = "the agent ended while it was being put in place: "+err.Error(), false
		}
		h.record.Stale = h.record.Stale || undone && len(t.Reload) > 0
	}
	a.log.Warn("config taken back", "config", key.String(), "version", t.Version, "reason", why)
	if err := a.change(h, func(r *configRecord) { r.fail(&t.content, why, again) }); err != nil {
		a.log.Error("record of a config", "config", key.String(), "err", err)
	}
	a.resume(h)
}

// resume plans what is to be done without an offer. A program that was not told
// what is in place is told once, at the start of the agent.
func (a *applier) resume(h *heldConfig) {
	r := &h.record
	switch {
	case h.waiting != nil:
	case r.Stale && !h.resumed:
		a.putLocked(h, &offer{reload: true, again: true, newer: make(chan struct{})}, time.Now())
	case r.Again:
		a.putLocked(h, retry(r.Last), r.again(a.retry, time.Now()))
	}
	h.resumed = true
}

// sweepPaths removes hidden files that nothing needs any more.
func (a *applier) sweepPaths(h *heldConfig) {
	if t := h.record.Trying; t != nil && t.Placed {
		return // they may be what is to be put back
	}
	paths := h.record.paths()
	if h.record.Last != nil {
		paths = append(paths, h.record.Last.Path)
	}
	if h.record.Left != "" {
		paths = append(paths, h.record.Left)
	}
	for _, path := range paths {
		if checkPath(path) != nil {
			continue
		}
		if p, err := openPlace(a.root, path, h.record.key()); err == nil {
			p.sweep()
			p.close()
		}
	}
}

// undo moves the files of an attempt back, as far as they were moved, and says
// whether any was.
func undo(root string, key configKey, t *attempt) (done bool, err error) {
	if t.From != "" {
		done, err = undoAt(root, t.From, key, (*place).undoAside)
	}
	back := func(p *place) (bool, error) { return p.undoSwap(t.Sha256) }
	if t.Fresh {
		back = func(p *place) (bool, error) { return p.undoNew(t.Sha256) }
	}
	moved, merr := undoAt(root, t.Path, key, back)
	return done || moved, errors.Join(err, merr)
}

func undoAt(root, path string, key configKey, fn func(*place) (bool, error)) (bool, error) {
	p, err := openPlace(root, path, key)
	if isGone(err) {
		return false, nil // with all that was in it
	} else if err != nil {
		return false, err
	}
	defer p.close()
	return fn(p)
}

// reloadStale has a program told what is in place, which it was not told yet.
func (a *applier) reloadStale(ctx context.Context, h *heldConfig) error {
	r := a.record(h)
	if r.Last == nil {
		return nil
	}
	err := a.reloadBack(ctx, h, r.Last, rand.Text())
	if err != nil && !errors.Is(err, errStopped) {
		a.log.Warn("program not told of its config", "config", r.key().String(), "err", err)
	}
	return nil
}

// reloadBack tells the program about what is in place instead of a version that
// was not to be: in the words of what is in place, if that is ours.
func (a *applier) reloadBack(ctx context.Context, h *heldConfig, failed *content, mark string) error {
	c := failed
	if p := a.record(h).Placed; p != nil {
		c = p
	}
	k := hook{name: "reload_cmd", argv: c.Reload, file: a.target(c), mark: mark}
	if err := a.runHook(ctx, h.record.key(), c, k); err != nil {
		return err
	}
	return a.commit(h, func(r *configRecord) { r.Stale = false })
}
