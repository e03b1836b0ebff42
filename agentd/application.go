package agentd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// application is one attempt to put a version in place. Its steps, in an order
// in which the target is whole after an end at any of them:
//
//	begin     the content and what is tried are on disk
//	stage     the new file is beside the target, whole, with its mode and owner
//	check     check_cmd accepts the staged file
//	announce  the record says that files are moved
//	swap      the new file is in place, the old one beside it
//	reload    reload_cmd accepts what is in place
//	commit    the record says that the version is in place
//	sweep     the old file is removed
//
// What ends before the announcement leaves the target as it was. What ends
// between announcement and commit is undone: by the attempt itself, or by the
// next start of the agent, which sees by the files how far it was.
type application struct {
	*applier
	h    *heldConfig
	key  configKey
	o    *offer
	mark string

	to   *place
	was  fs.FileInfo // at the target; nil: nothing
	from *place      // where an earlier version is, when that is another path
	left fs.FileInfo // there
	sent bool        // the program may know of the new file
}

// lasting is a failure that is not tried again by itself.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

// apply does what a config waits for, and notes what came of it.
func (a *applier) apply(ctx context.Context, h *heldConfig) {
	key, o := h.record.key(), h.busy
	var err error
	switch {
	case o.reload:
		err = a.reloadStale(ctx, h)
	case o.bad != nil:
		err = lasting{o.bad}
	case o.Version == deletedVersion:
		err = a.delete(ctx, h)
	case h.holds(&o.content):
		err = a.commit(h, func(r *configRecord) { r.succeed(&o.content) })
	default:
		ap := &application{applier: a, h: h, key: key, o: o, mark: rand.Text()}
		err = ap.run(ctx)
	}
	a.finish(h, o, err)
}

func (ap *application) run(ctx context.Context) error {
	body, err := ap.contentOf(ctx, ap.h, ap.o)
	if err != nil {
		return err
	}
	if err := ap.o.verify(body); err != nil {
		return lasting{err}
	}
	if err := ap.begin(body); err != nil {
		return err
	}
	defer ap.close()
	if len(ap.o.Check)+len(ap.o.Reload) > 0 && !ap.hooks.allowed {
		return errHooks
	}
	if err := ap.stage(body); err != nil {
		return err
	}
	if err := ap.check(ctx); err != nil {
		ap.to.unstage()
		return err
	}
	if err := ap.announce(); err != nil {
		ap.to.unstage()
		return err
	}
	if err := ap.install(ctx); err != nil {
		return ap.back(ctx, err)
	}
	ap.sweep()
	return nil
}

// begin makes the attempt known, and claims its path.
func (ap *application) begin(body []byte) error {
	now := time.Now()
	t := &attempt{content: ap.o.content, Mark: ap.mark}
	if ap.o.link != nil {
		if err := ap.store.keep(ap.key, body); err != nil {
			return fmt.Errorf("content could not be stored: %w", err)
		}
	}
	ap.mu.Lock()
	other := ap.claimantLocked(ap.h, t.Path)
	if other == nil {
		if p := ap.h.record.Placed; p != nil && p.Path != t.Path {
			t.From = p.Path
		}
		ap.h.record.Trying = t // from now on the path is taken
	}
	ap.mu.Unlock()
	if other != nil {
		return fmt.Errorf("file.path %s is that of %v", t.Path, other.record.key())
	}
	err := ap.change(ap.h, func(r *configRecord) { r.try(&ap.o.content, now) })
	ap.step("begin")
	return err
}

func (ap *application) stage(body []byte) (err error) {
	if ap.to, err = openPlace(ap.root, ap.o.Path, ap.key); err != nil {
		return err
	}
	if ap.was, err = ap.to.look(); err != nil {
		return err
	}
	if err = ap.lookAtOther(); err != nil {
		return err
	}
	err = ap.to.stage(body, ap.was, ap.o.Mode)
	ap.step("stage")
	return err
}

// lookAtOther finds the file that the version in place has somewhere else.
func (ap *application) lookAtOther() (err error) {
	from := ap.record(ap.h).Trying.From
	if from == "" {
		return nil
	}
	if ap.from, err = openPlace(ap.root, from, ap.key); isGone(err) {
		return nil
	} else if err != nil {
		return err
	}
	ap.left, err = ap.from.look()
	return err
}

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// check has the staged file judged. A program that writes where it should only
// read is found out, and what it wrote to the target is undone.
func (ap *application) check(ctx context.Context) error {
	if len(ap.o.Check) == 0 {
		return nil
	}
	before, err := ap.to.snapshot(ap.was)
	if err != nil {
		return err
	}
	file := ap.to.beside(ap.to.staged)
	err = ap.runHook(ctx, ap.key, &ap.o.content, hook{"check_cmd", filled(ap.o.Check, file), file, ap.mark})
	ap.step("check")
	touched, rerr := ap.to.restore(before)
	switch {
	case err != nil:
		return further(err, rerr)
	case rerr != nil:
		return rerr
	case touched:
		return errors.New("check_cmd changed the file in place, which was put back")
	}
	return ap.to.intact(ap.o.Sha256)
}

func (ap *application) announce() error {
	err := ap.commit(ap.h, func(r *configRecord) {
		t := *r.Trying
		t.Placed, t.Fresh = true, ap.was == nil
		r.Trying = &t
	})
	ap.step("announce")
	return err
}

// install moves the files, has the program told and commits. When it fails, all
// of that is to be undone.
func (ap *application) install(ctx context.Context) error {
	if err := ap.to.swap(ap.was); err != nil {
		return err
	}
	if ap.left != nil {
		if err := ap.from.setAside(ap.left); err != nil {
			return err
		}
	}
	ap.step("swap")
	ap.sent = len(ap.o.Reload) > 0
	if err := ap.runHook(ctx, ap.key, &ap.o.content, hook{"reload_cmd", ap.o.Reload, ap.to.file, ap.mark}); err != nil {
		if errors.Is(err, errStopped) {
			return err
		}
		return lasting{err}
	}
	ap.step("reload")
	err := ap.commit(ap.h, func(r *configRecord) { r.succeed(&ap.o.content) })
	ap.step("commit")
	return err
}

// back puts the version in place that was there before, and has the program told.
func (ap *application) back(ctx context.Context, cause error) error {
	if err := ap.change(ap.h, func(r *configRecord) { r.Stale = r.Stale || ap.sent }); err != nil {
		ap.log.Error("record of a config", "config", ap.key.String(), "err", err)
	}
	_, err := undo(ap.root, ap.key, ap.record(ap.h).Trying)
	ap.step("back")
	if err != nil {
		return further(cause, err)
	}
	if !ap.sent {
		return cause
	}
	if err := ap.reloadBack(ctx, ap.h, &ap.o.content, ap.mark); err != nil {
		return further(cause, fmt.Errorf("and what was there before is back, but its program was not told: %w", err))
	}
	return cause
}

// further is a failure with more to say, as lasting as before.
func further(err, more error) error {
	if more == nil {
		return err
	}
	joined := fmt.Errorf("%w; %w", err, more)
	if errors.As(err, new(lasting)) {
		return lasting{joined}
	}
	return joined
}

// sweep removes what was replaced.
func (ap *application) sweep() {
	ap.to.sweep()
	if ap.from != nil {
		ap.from.sweep()
	}
	ap.step("sweep")
}

func (ap *application) close() {
	if ap.to != nil {
		ap.to.close()
	}
	if ap.from != nil {
		ap.from.close()
	}
}
