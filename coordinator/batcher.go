package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/musterhq/muster/coordinator/store"
)

// errBacklog means that more reports wait for the disk than the limit allows.
var errBacklog = errors.New("coordinator: backlog of writes is full")

// batcher takes writes from readers that may not wait, commits many at once,
// and tells each what came of it. Writes are committed in the order they came.
type batcher struct {
	store    store.Store
	maxItems int
	maxBytes int

	mu    sync.Mutex
	items []*write
	bytes int
	wake  chan struct{} // cap 1
}

// write is one all-or-nothing part of a batch.
type write struct {
	// ops says what to write, just before the commit, on the batcher's
	// goroutine; it may read the store and be asked again. All earlier writes
	// are done then or part of the same commit. No ops is no commit: done is
	// called with ok.
	ops  func(ctx context.Context) ([]store.Op, error)
	done func(skipped []bool, err error) // may be nil; must not block. skipped has one entry per op
	size int

	made []store.Op
}

// fixed is the ops of a write that is known beforehand.
func fixed(ops ...store.Op) func(context.Context) ([]store.Op, error) {
	return func(context.Context) ([]store.Op, error) { return ops, nil }
}

func newBatcher(s store.Store, maxItems, maxBytes int) *batcher {
	return &batcher{store: s, maxItems: maxItems, maxBytes: maxBytes, wake: make(chan struct{}, 1)}
}

// add queues w, or refuses it with errBacklog. It never blocks.
func (b *batcher) add(w *write) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) >= b.maxItems || b.bytes+w.size > b.maxBytes {
		return errBacklog
	}
	b.push(w)
	return nil
}

// must queues w whatever the limit: for the few writes that the coordinator
// itself owes, such as the end of a command.
func (b *batcher) must(w *write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.push(w)
}

func (b *batcher) push(w *write) {
	b.items = append(b.items, w)
	b.bytes += w.size
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *batcher) take() []*write {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

func (b *batcher) release(ws []*write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range ws {
		b.bytes -= w.size
	}
}

// run commits until ctx ends. What is queued then is not stored and not
// acknowledged: its senders send it again.
func (b *batcher) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
		items := b.take()
		for rest := items; len(rest) > 0 && ctx.Err() == nil; {
			n := b.fill(ctx, rest)
			b.commit(ctx, rest[:n])
			rest = rest[n:]
		}
		b.release(items)
	}
}

// fill prepares as many of ws as fit in one batch and returns their number, at
// least one. A key may stand in a batch once.
func (b *batcher) fill(ctx context.Context, ws []*write) int {
	ops, bytes := 0, 0
	type place struct {
		space store.Space
		key   string
	}
	seen := map[place]struct{}{}
	for i, w := range ws {
		if w.made == nil {
			made, err := w.ops(ctx)
			if err != nil {
				w.finish(nil, err)
				w.ops = nil
				continue
			}
			w.made = made
		}
		n := 0
		for _, o := range w.made {
			n += len(o.Key) + len(o.Value)
			if _, twice := seen[place{o.Space, string(o.Key)}]; twice {
				w.made = nil // asked again once this batch is done
				return i
			}
		}
		if i > 0 && (ops+len(w.made) > store.MaxOps || bytes+n > store.MaxBytes) {
			w.made = nil
			return i
		}
		for _, o := range w.made {
			seen[place{o.Space, string(o.Key)}] = struct{}{}
		}
		ops, bytes = ops+len(w.made), bytes+n
	}
	return len(ws)
}

func (b *batcher) commit(ctx context.Context, ws []*write) {
	var batch store.Batch
	for _, w := range ws {
		batch.Ops = append(batch.Ops, w.made...)
	}
	if len(batch.Ops) == 0 {
		for _, w := range ws {
			w.finish(nil, nil)
		}
		return
	}
	res, err := b.store.Commit(ctx, batch)
	if len(ws) > 1 && (errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrInvalid)) {
		for i := range ws { // one of them is to blame: the others must not suffer
			b.commit(ctx, ws[i:i+1])
		}
		return
	}
	if err != nil {
		err = fmt.Errorf("commit of %d rows: %w", len(batch.Ops), err)
	}
	skipped := make([]bool, len(batch.Ops))
	for _, i := range res.Skipped {
		skipped[i] = true
	}
	for _, w := range ws {
		w.finish(skipped[:len(w.made)], err)
		skipped = skipped[len(w.made):]
	}
	if err != nil {
		pause(ctx, 100*time.Millisecond) // a full disk must not become a spin
	}
}

func (w *write) finish(skipped []bool, err error) {
	if w.done != nil && w.ops != nil {
		w.done(skipped, err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
