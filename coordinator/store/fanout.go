package store

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"sync"
)

// How much of a space's past its watchers may lag behind or ask for again. What
// is over either limit is let go, and a watcher that still wanted it is cut.
const (
	heldEvents = 50_000
	heldBytes  = 16 << 20
)

// Fanout is Watch for an engine whose commits all go through one process. It
// holds the latest changes of each watched space; each watcher reads them there
// at its own pace, so publishing waits for nobody and copies nothing.
type Fanout struct {
	feeds map[Space]*feed
	done  chan struct{}

	mu     sync.Mutex // orders Watch and Close
	closed bool
	pumps  sync.WaitGroup
}

// NewFanout starts after rev: older changes are not held.
func NewFanout(spaces Spaces, rev Rev) *Fanout {
	f := &Fanout{feeds: map[Space]*feed{}, done: make(chan struct{})}
	for s, watched := range spaces {
		if watched {
			f.feeds[s] = &feed{
				maxEvents: heldEvents, maxBytes: heldBytes,
				floor: rev, watchers: map[*watcher]struct{}{},
			}
		}
	}
	return f
}

// Publish adds changes, in commit order. It does not block. The changes must
// not be written to from then on.
func (f *Fanout) Publish(changes []Change) {
	for _, c := range changes {
		f.feeds[c.Space].publish(c)
	}
}

// Watch is Store.Watch, save for revisions that lie ahead.
func (f *Fanout) Watch(ctx context.Context, s Space, prefix []byte, after Rev) (<-chan []Event, error) {
	feed := f.feeds[s]
	if feed == nil {
		return nil, fmt.Errorf("%w: space %q is not watched", ErrInvalid, s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fmt.Errorf("%w: the store is closed", ErrUnavailable)
	}
	w := &watcher{
		prefix: bytes.Clone(prefix), end: End(prefix), after: after,
		wake: make(chan struct{}, 1), out: make(chan []Event, 4),
	}
	if err := feed.join(w); err != nil {
		return nil, err
	}
	f.pumps.Go(func() {
		defer close(w.out)
		defer feed.leave(w)
		feed.pump(ctx, f.done, w)
	})
	return w.out, nil
}

// Close ends all watches; it returns when their channels are closed.
func (f *Fanout) Close() {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.done)
	}
	f.mu.Unlock()
	f.pumps.Wait()
}

// feed holds the latest changes of one space.
type feed struct {
	maxEvents, maxBytes int

	mu       sync.Mutex
	held     []Change // oldest first
	first    int      // how many changes were let go: the position of held[0]
	floor    Rev      // of the last change let go
	events   int      // in held
	bytes    int
	watchers map[*watcher]struct{}
}

// watcher is a reader's place in a feed.
type watcher struct {
	prefix, end []byte
	after       Rev
	next        int // position of the next change to send; under feed.mu
	wake        chan struct{}
	out         chan []Event
}

func (f *feed) publish(c Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = append(f.held, c)
	f.events += len(c.Events)
	f.bytes += sizeOf(c)
	for len(f.held) > 1 && (f.events > f.maxEvents || f.bytes > f.maxBytes) {
		old := f.held[0]
		f.held[0] = Change{} // the array lives on under the shorter slice
		f.held = f.held[1:]
		f.first++
		f.floor = old.Rev
		f.events -= len(old.Events)
		f.bytes -= sizeOf(old)
	}
	for w := range f.watchers {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func sizeOf(c Change) int {
	n := 0
	for _, e := range c.Events {
		n += len(e.Key) + len(e.Value)
	}
	return n
}

func (f *feed) join(w *watcher) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.after < f.floor {
		return fmt.Errorf("%w: revision %d, held from %d", ErrCompacted, w.after, f.floor)
	}
	w.next = f.first + sort.Search(len(f.held), func(i int) bool { return f.held[i].Rev > w.after })
	f.watchers[w] = struct{}{}
	return nil
}

func (f *feed) leave(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}

// pump sends to w until it is too slow or one of the two ends.
func (f *feed) pump(ctx context.Context, done <-chan struct{}, w *watcher) {
	for {
		events, ok := f.take(w)
		if !ok {
			return
		}
		out, wake := w.out, (chan struct{})(nil)
		if events == nil { // nothing to send: wait to be woken
			out, wake = nil, w.wake
		}
		select {
		case out <- events:
		case <-wake:
		case <-ctx.Done():
			return
		case <-done:
			return
		}
	}
}

// take returns the events of the next change that w wants, or nil when there is
// none yet, or false when changes that it has not seen were let go.
func (f *feed) take(w *watcher) ([]Event, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.next < f.first {
		return nil, false
	}
	for w.next < f.first+len(f.held) {
		c := f.held[w.next-f.first]
		w.next++
		if events := w.wants(c); len(events) > 0 {
			return events, true
		}
	}
	return nil, true
}

// wants cuts the events under the prefix out of a change: they are neighbours.
func (w *watcher) wants(c Change) []Event {
	if c.Rev <= w.after { // read by the scan before it was published
		return nil
	}
	events := c.Events
	from := sort.Search(len(events), func(i int) bool { return bytes.Compare(events[i].Key, w.prefix) >= 0 })
	to := len(events)
	if w.end != nil {
		to = sort.Search(len(events), func(i int) bool { return bytes.Compare(events[i].Key, w.end) >= 0 })
	}
	return events[from:to:to]
}
