package coordinator

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// commandEvent tells how a command is now, without its input and its list of
// agents: thousands of events are kept, and who wants these can ask for them.
func commandEvent(cmd *musterv1.Command) *musterv1.Event {
	cmd.Input, cmd.Target = nil, nil
	return &musterv1.Event{Kind: "command", Command: cmd}
}

// targetEvent tells a state, without the result that may come with it.
func targetEvent(t *musterv1.Target) *musterv1.Event {
	if len(t.Result) > 0 {
		t = proto.CloneOf(t)
		t.Result = nil
	}
	return &musterv1.Event{Kind: "target", Target: t}
}

// tellTargets tells states of targets to whoever follows them.
func (c *Coordinator) tellTargets(ts ...*musterv1.Target) {
	if len(ts) == 0 {
		return
	}
	c.feed.publishIfWatched(func() []*musterv1.Event {
		events := make([]*musterv1.Event, len(ts))
		for i, t := range ts {
			events[i] = targetEvent(t)
		}
		return events
	})
}

// feed keeps the latest events in a ring. Each reader has a position of its
// own, so a slow one holds nobody up: when the ring has gone past it, it gets
// one "resync".
type feed struct {
	epoch string
	wall  func() time.Time

	mu      sync.Mutex
	ring    []*musterv1.Event
	next    uint64 // seq of the next event; seqs start at 1
	whole   uint64 // from this one on none was left out
	readers int
	left    time.Time     // when one went away last
	fresh   chan struct{} // closed and replaced with each event
}

func newFeed(size int, wall func() time.Time) *feed {
	return &feed{epoch: ulid.Make().String(), wall: wall, ring: make([]*musterv1.Event, size), next: 1, whole: 1, fresh: make(chan struct{})}
}

// publish adds events, whose messages must not change afterwards.
func (f *feed) publish(es ...*musterv1.Event) {
	if len(es) == 0 {
		return
	}
	now := timestamppb.New(f.wall())
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range es {
		e.Id = f.id(f.next)
		e.Time = now
		f.ring[f.next%uint64(len(f.ring))] = e
		f.next++
	}
	f.wakeLocked()
}

// publishIfWatched publishes what events makes. It spares events by the thousand
// for nobody: unless somebody reads, or did so a short while ago and may come back
// for what was missed, none is made, and who comes back for them is told resync.
func (f *feed) publishIfWatched(events func() []*musterv1.Event) {
	if f.leaveOut() {
		return
	}
	f.publish(events()...)
}

// leaveOut notes that events are left out, if nobody is there for them.
func (f *feed) leaveOut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers > 0 || time.Since(f.left) < time.Minute {
		return false
	}
	f.next++
	f.whole = f.next
	f.wakeLocked()
	return true
}

func (f *feed) wakeLocked() {
	close(f.fresh)
	f.fresh = make(chan struct{})
}

func (f *feed) id(seq uint64) string { return f.epoch + "." + strconv.FormatUint(seq, 10) }

// from returns the position after the event with this id and whether nothing
// was missed. An empty id is now.
func (f *feed) from(id string) (next uint64, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == "" {
		return f.next, true
	}
	epoch, num, _ := strings.Cut(id, ".")
	seq, err := strconv.ParseUint(num, 10, 64)
	if err != nil || epoch != f.epoch || seq >= f.next || !f.holdsLocked(seq+1) {
		return f.next, false
	}
	return seq + 1, true
}

func (f *feed) holdsLocked(seq uint64) bool {
	return seq >= f.whole && seq+uint64(len(f.ring)) > f.next-1
}

// attend counts a reader until the function it returns is called.
func (f *feed) attend() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.readers--
		f.left = time.Now()
	}
}

// read returns up to 256 events from position next on and the position after
// them; it waits until there is one or ctx ends. Missed events are one resync.
func (f *feed) read(ctx context.Context, next uint64) ([]*musterv1.Event, uint64, error) {
	for {
		f.mu.Lock()
		fresh := f.fresh
		if next < f.next && !f.holdsLocked(next) {
			next = f.next
			e := f.resyncLocked()
			f.mu.Unlock()
			return []*musterv1.Event{e}, next, nil
		}
		var es []*musterv1.Event
		for ; next < f.next && len(es) < 256; next++ {
			es = append(es, f.ring[next%uint64(len(f.ring))])
		}
		f.mu.Unlock()
		if len(es) > 0 {
			return es, next, nil
		}
		select {
		case <-fresh:
		case <-ctx.Done():
			return nil, next, fmt.Errorf("events: %w", context.Cause(ctx))
		}
	}
}

// resync is the event for a reader that missed some: it carries the id to
// resume after.
func (f *feed) resync() *musterv1.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resyncLocked()
}

func (f *feed) resyncLocked() *musterv1.Event {
	return &musterv1.Event{Id: f.id(f.next - 1), Kind: "resync", Time: timestamppb.New(f.wall())}
}
