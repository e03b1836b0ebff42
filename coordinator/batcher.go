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
// and tells each what came of it. Writes are committed in the order they came,
// one batch after the other; while the store is at work on one, the next is made
// ready and the one before is answered.
type batcher struct {
	store    *packer
	maxItems int
	maxBytes int

	mu    sync.Mutex
	items []*write
	bytes int
	wake  chan struct{} // cap 1
}

// After a commit of many writes more are on their way: the next one waits for
// them, because a commit of a few costs nearly as much as one of hundreds. A
// single write, and the first ones of a rush, do not wait.
const (
	rush   = 32
	gather = 3 * time.Millisecond
)

// write is one all-or-nothing part of a batch.
type write struct {
	// ops says what to write, just before the commit, on the batcher's
	// goroutine; it may read the store and be asked again. All earlier writes
	// are done then or part of the same commit, unless it is blind. No ops is no
	// commit: done is called with ok.
	ops func(ctx context.Context) ([]store.Op, error)
	// results are final Targets, stored with the ops; ops may set them.
	results []result
	done    func(skipped []bool, err error) // may be nil; must not block; called in order. skipped has one entry per op, and then one per result
	size    int
	blind   bool // ops may be asked while earlier writes, of other keys, are being committed

	made   []store.Op
	failed error // of ops
}

// fixed is the ops of a write that is known beforehand.
func fixed(ops ...store.Op) func(context.Context) ([]store.Op, error) {
	return func(context.Context) ([]store.Op, error) { return ops, nil }
}

func newBatcher(s *packer, maxItems, maxBytes int) *batcher {
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
	var queue []*write // taken, and in no batch yet
	next, last := newBatch(0), landed()
	defer func() { <-last.landed }()
	for {
		queue = next.fill(ctx, append(queue, b.take()...), last)
		more, ready := b.wake, last.over
		switch {
		case len(next.writes) == 0 && len(queue) > 0:
			more, ready = nil, last.landed // the next one has to see what comes of it
		case len(next.writes) == 0:
			ready = nil
		case len(queue) > 0:
			more, ready = nil, last.committed // it is full, so there is nobody to wait for
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		case <-ready:
			if len(next.writes) > 0 {
				go b.commit(ctx, next, last)
				next, last = newBatch(len(next.keys)), next
			}
		}
	}
}

// batch is writes that are committed together. It grows until the store is done
// with the one before.
type batch struct {
	writes []*write
	keys   map[rowKey]struct{} // of what they write
	ops    int
	bytes  int

	committed chan struct{} // closed when the store has answered
	over      chan struct{} // closed then, and in a rush a moment later
	landed    chan struct{} // closed when the writes have been told, too
}

// rowKey names a row by its space and key, or a result by its command and agent.
type rowKey struct {
	space      store.Space
	key, agent string
}

func keyOf(o store.Op) rowKey { return rowKey{space: o.Space, key: string(o.Key)} }

// newBatch is a batch that will hold about as many keys as another did.
func newBatch(keys int) *batch {
	return &batch{keys: make(map[rowKey]struct{}, keys), committed: make(chan struct{}), over: make(chan struct{}), landed: make(chan struct{})}
}

// landed is a batch before the first.
func landed() *batch {
	t := newBatch(0)
	close(t.committed)
	close(t.over)
	close(t.landed)
	return t
}

// fill adds as many of ws as fit, and returns the others. A key may stand in a
// batch once, and not in the last one while that is on its way.
func (t *batch) fill(ctx context.Context, ws []*write, last *batch) []*write {
	flying := true
	select {
	case <-last.landed:
		flying = false
	default:
	}
	for i, w := range ws {
		if flying && !w.blind {
			return ws[i:]
		}
		if w.made, w.failed = w.ops(ctx); w.failed != nil {
			w.made, w.results = nil, nil
		}
		if !t.fits(w) || t.writesOneOf(w) || flying && last.writesOneOf(w) {
			return ws[i:] // asked again once that batch is done
		}
		t.add(w)
	}
	return nil
}

func (t *batch) fits(w *write) bool {
	return len(t.writes) == 0 || t.ops+w.rows() <= store.MaxOps && t.bytes+w.bytes() <= store.MaxBytes
}

// rows is how many it writes at most, for each result may begin a pack.
func (w *write) rows() int { return len(w.made) + len(w.results) }

func (w *write) bytes() int {
	n := sizeOf(w.made)
	for _, r := range w.results {
		n += len(r.value) + resultOverhead
	}
	return n
}

func (t *batch) writesOneOf(w *write) bool {
	for _, o := range w.made {
		if _, there := t.keys[keyOf(o)]; there {
			return true
		}
	}
	for _, r := range w.results {
		if _, there := t.keys[r.key()]; there {
			return true
		}
	}
	return false
}

func (t *batch) add(w *write) {
	t.writes = append(t.writes, w)
	t.ops += w.rows()
	t.bytes += w.bytes()
	for _, o := range w.made {
		t.keys[keyOf(o)] = struct{}{}
	}
	for _, r := range w.results {
		t.keys[r.key()] = struct{}{}
	}
}

// commit stores t, and tells its writes after those of the batch before.
func (b *batcher) commit(ctx context.Context, t, before *batch) {
	outcomes := b.attempt(ctx, t.writes)
	close(t.committed)
	if len(t.writes) < rush {
		close(t.over)
	} else {
		time.AfterFunc(gather, func() { close(t.over) })
	}
	<-before.landed
	for i, w := range t.writes {
		w.finish(outcomes[i])
	}
	b.release(t.writes)
	close(t.landed)
}

// outcome is what came of a write.
type outcome struct {
	skipped []bool
	err     error
}

// attempt commits writes, all or none; but one that is to blame takes none of the
// others with it.
func (b *batcher) attempt(ctx context.Context, ws []*write) []outcome {
	nops, nresults := 0, 0
	for _, w := range ws {
		nops, nresults = nops+len(w.made), nresults+len(w.results)
	}
	ops, results := make([]store.Op, 0, nops), make([]result, 0, nresults)
	for _, w := range ws {
		ops, results = append(ops, w.made...), append(results, w.results...)
	}
	outcomes := make([]outcome, len(ws))
	if len(ops)+len(results) == 0 {
		return outcomes
	}
	skippedOps, skippedResults, err := b.store.commit(ctx, ops, results)
	if len(ws) > 1 && (errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrInvalid)) {
		for i := range ws {
			outcomes[i] = b.attempt(ctx, ws[i:i+1])[0]
		}
		return outcomes
	}
	if err != nil {
		err = fmt.Errorf("commit of %d rows and %d results: %w", len(ops), len(results), err)
		pause(ctx, 100*time.Millisecond) // a full disk must not become a spin
	}
	skipped := make([]bool, 0, nops+nresults)
	for i, w := range ws {
		from := len(skipped)
		skipped = append(append(skipped, skippedOps[:len(w.made)]...), skippedResults[:len(w.results)]...)
		outcomes[i] = outcome{skipped[from:], err}
		skippedOps, skippedResults = skippedOps[len(w.made):], skippedResults[len(w.results):]
	}
	return outcomes
}

func (w *write) finish(o outcome) {
	switch {
	case w.done == nil:
	case w.failed != nil:
		w.done(nil, w.failed)
	default:
		w.done(o.skipped, o.err)
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
