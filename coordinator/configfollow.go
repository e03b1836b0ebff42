package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configFollower brings what is committed in spaceConfig to the parts that keep
// it in memory: each has a hook for its rows. All of them are called by one
// goroutine, in the order of the commits; before Run, by New.
type configFollower struct {
	*position
	c     *Coordinator
	hooks []configHook // in the order in which they hear of a commit
	read  [][]readPage // of the last whole reading, by hook
	from  store.Rev    // the watch starts here
}

// configHook takes the rows under one prefix of spaceConfig. Its functions must
// not wait for anything but memory.
type configHook struct {
	prefix string
	// all gets every row there is: at the start, and again after changes were
	// missed. What was known and is not among them is gone.
	all func(rows []store.KV)
	// change gets one row that was put or deleted.
	change func(e store.Event)
	// done, if not nil, is called when a commit that had rows of this hook, or a
	// whole reading, is applied by all hooks.
	done func()
}

// readPage says up to which key, and as of which revision, rows were read.
type readPage struct {
	last []byte // nil: to the end
	rev  store.Rev
}

func newConfigFollower(c *Coordinator, hooks ...configHook) *configFollower {
	return &configFollower{position: newPosition(), c: c, hooks: hooks}
}

// load reads all rows and hands them to the hooks.
func (f *configFollower) load(ctx context.Context) error {
	rows := make([][]store.KV, len(f.hooks))
	read := make([][]readPage, len(f.hooks))
	for i, h := range f.hooks {
		var err error
		if rows[i], read[i], err = f.readAll(ctx, h.prefix); err != nil {
			return fmt.Errorf("rows %s: %w", h.prefix, err)
		}
	}
	f.read, f.from = read, read[0][0].rev
	for i, h := range f.hooks {
		h.all(rows[i])
	}
	for _, h := range f.hooks {
		if h.done != nil {
			h.done()
		}
	}
	f.reach(f.from)
	return nil
}

func (f *configFollower) readAll(ctx context.Context, prefix string) (rows []store.KV, read []readPage, err error) {
	var after []byte
	for {
		page, err := f.c.store.Scan(ctx, spaceConfig, store.Range{Prefix: []byte(prefix), After: after})
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, page.Items...)
		if !page.More {
			return rows, append(read, readPage{nil, page.Rev}), nil
		}
		after = page.Items[len(page.Items)-1].Key
		read = append(read, readPage{after, page.Rev})
	}
}

// run applies what is committed until ctx ends. A watch that was cut is no harm:
// all is read again.
func (f *configFollower) run(ctx context.Context) error {
	for {
		changes, err := f.c.store.Watch(ctx, spaceConfig, nil, f.from)
		if err == nil {
			for es := range changes {
				f.apply(es)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrCompacted) {
			f.c.log.Error("cannot watch groups and configs", "err", err)
		}
		pause(ctx, 100*time.Millisecond)
		for {
			err := f.load(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			f.c.log.Error("cannot read groups and configs", "err", err)
			pause(ctx, time.Second)
		}
		f.c.feed.publish(&musterv1.Event{Kind: "resync"})
	}
}

// apply brings one commit to the hooks, one hook after the other.
func (f *configFollower) apply(es []store.Event) {
	var rev store.Rev
	heard := make([]bool, len(f.hooks))
	for i, h := range f.hooks {
		for _, e := range es {
			rev = max(rev, e.Rev)
			if strings.HasPrefix(string(e.Key), h.prefix) && !hasRead(f.read[i], e) {
				h.change(e)
				heard[i] = true
			}
		}
	}
	for i, h := range f.hooks {
		if heard[i] && h.done != nil {
			h.done()
		}
	}
	f.reach(rev)
}

// hasRead reports whether a change was in the rows already when they were read.
func hasRead(read []readPage, e store.Event) bool {
	for _, p := range read {
		if p.last == nil || bytes.Compare(e.Key, p.last) <= 0 {
			return e.Rev <= p.rev
		}
	}
	return false
}

// commitWanted commits changes of spaceConfig, and waits until they are in force.
func (c *Coordinator) commitWanted(ctx context.Context, ops ...store.Op) error {
	res, err := c.store.Commit(ctx, store.Batch{Ops: ops})
	if err != nil {
		return err
	}
	return c.wanted.await(ctx, res.Rev)
}

// atRev is the condition that a row is still the one that was read.
func atRev(rev store.Rev) store.Cond {
	if rev == 0 {
		return store.Absent()
	}
	return store.AtRev(rev)
}
