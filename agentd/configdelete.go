package agentd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// delete takes a config away: its file, and what is known of it. The program is
// told, but cannot keep the file: what it says against it is in the reason. An
// end at any step is no harm, the next start goes on.
func (a *applier) delete(ctx context.Context, h *heldConfig) error {
	r := a.record(h)
	if r.Placed == nil {
		return a.forget(h, "")
	}
	t := &attempt{content: *r.Placed, Mark: rand.Text()}
	t.Version = deletedVersion
	err := a.change(h, func(r *configRecord) {
		r.Trying = t
		r.try(&content{Version: deletedVersion}, time.Now())
	})
	a.step("delete")
	if err != nil {
		return err
	}
	return a.deleteFile(ctx, h, t)
}

func (a *applier) deleteFile(ctx context.Context, h *heldConfig, t *attempt) error {
	key := h.record.key()
	p, err := openPlace(a.root, t.Path, key)
	if isGone(err) {
		return a.forget(h, "")
	} else if err != nil {
		return err
	}
	defer p.close()
	was, err := p.look()
	if err != nil {
		return err
	}
	if was != nil {
		if err := p.setAside(was); err != nil {
			return err
		}
	}
	a.step("deleted")
	why := ""
	err = a.runHook(ctx, key, &t.content, hook{"reload_cmd", t.Reload, p.file, t.Mark})
	if errors.Is(err, errStopped) {
		return err
	} else if err != nil {
		why = err.Error()
	}
	p.sweep()
	return a.forget(h, why)
}

// forget leaves of a config only that it is gone, until this process ends or the
// room is needed.
func (a *applier) forget(h *heldConfig, why string) error {
	key := h.record.key()
	if err := a.store.forget(key); err != nil {
		return fmt.Errorf("record could not be removed: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.record = configRecord{Kind: key.kind, Name: key.name, Status: musterv1.ConfigStatus_DELETED, Version: deletedVersion, Reason: reason(why)}
	return nil
}
