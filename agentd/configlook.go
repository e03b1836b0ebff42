package agentd

import (
	"context"
	"io/fs"
	"syscall"
	"time"
)

// lookEvery is how often it is looked at whether the files of configs are what
// was put there.
const lookEvery = time.Minute

// fileStamp changes with every change of a file.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) (s fileStamp) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s = fileStamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	}
	return s
}

// look finds out whether what is in place is what was put there. Whoever calls
// it has made the config busy, or keeps others from it by setLooking, or is alone.
func (a *applier) look(h *heldConfig) {
	r := a.record(h)
	changed, seen := "", fileStamp{}
	if r.Placed != nil {
		changed, seen = a.lookAt(h, r.key(), r.Placed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if changed != h.changed && changed != "" {
		a.log.Warn("config changed on the host", "config", r.key().String(), "what", changed)
	}
	h.changed, h.seen = changed, seen
}

func (a *applier) lookAt(h *heldConfig, key configKey, c *content) (changed string, seen fileStamp) {
	p, err := openPlace(a.root, c.Path, key)
	if err != nil {
		return err.Error(), seen
	}
	defer p.close()
	info, err := p.look()
	switch {
	case err != nil:
		return err.Error(), seen
	case info == nil:
		return p.file + " was removed on the host", seen
	}
	seen = stampOf(info)
	if seen == h.seen || p.hash(p.base) == c.Sha256 {
		return "", seen
	}
	return p.file + " was changed on the host", fileStamp{}
}

// lookNowAndThen finds out what is changed on the host.
func (a *applier) lookNowAndThen(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, h := range a.idle() {
			if a.setLooking(h, true) {
				a.look(h)
				a.setLooking(h, false)
			}
		}
	}
}

func (a *applier) idle() (all []*heldConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.held {
		if h.record.Placed != nil && h.busy == nil {
			all = append(all, h)
		}
	}
	return all
}

// setLooking keeps others from a config while it is looked at.
func (a *applier) setLooking(h *heldConfig, on bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.busy != nil {
		return false
	}
	if h.looking = on; !on {
		a.publishLocked(h)
		a.wakeUp()
	}
	return true
}
