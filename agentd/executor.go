package agentd

import (
	"context"
	"slices"
	"sync"
	"time"
)

// executor starts commands in the order in which they came, so many at once.
// One that expires while it waits is told so at once.
type executor struct {
	left   func(*held) time.Duration                 // until it expires
	start  func(ctx context.Context, h *held) func() // decides to start it; the rest of the run blocks; nil: it waits no more
	expire func(*held)

	mu      sync.Mutex
	waiting []*held
	begun   []func(context.Context) // to be run in slots that seize gave
	free    int                     // slots
	open    bool                    // run will look
	wake    chan struct{}
}

func newExecutor(slots int) *executor {
	return &executor{free: slots, wake: make(chan struct{}, 1)}
}

// put queues a command. Whoever calls it keeps the queue within its limit.
func (e *executor) put(h *held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, h)
	e.wakeLocked()
}

// seize takes a slot for a command that need not wait, if there is one and none
// waits. begin or yield must follow.
func (e *executor) seize() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.open || e.free == 0 || len(e.waiting) > 0 {
		return false
	}
	e.free--
	return true
}

// begin runs rest in the slot that seize gave; false: run has ended meanwhile.
func (e *executor) begin(rest func(context.Context)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.open {
		return false
	}
	e.begun = append(e.begun, rest)
	e.wakeLocked()
	return true
}

// yield gives a slot back.
func (e *executor) yield() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.free++
	e.wakeLocked()
}

func (e *executor) wakeLocked() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// drop takes a command out of the queue, if it is there.
func (e *executor) drop(h *held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = slices.DeleteFunc(e.waiting, func(w *held) bool { return w == h })
}

// run starts commands until ctx ends, and returns when those that ran have
// ended. What waits is left to the next start of the agent.
func (e *executor) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	occupy := func(rest func()) {
		running.Go(func() {
			defer e.yield()
			rest()
		})
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	e.takeBegun(true)
	for ctx.Err() == nil {
		next := e.expireLate()
		for _, rest := range e.takeBegun(true) {
			occupy(func() { rest(ctx) })
		}
		for h := e.pop(); h != nil; h = e.pop() {
			if rest := e.start(ctx, h); rest != nil {
				occupy(rest)
			} else {
				e.yield()
			}
		}
		timer.Reset(next)
		select {
		case <-e.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for _, rest := range e.takeBegun(false) { // these see that ctx has ended
		occupy(func() { rest(ctx) })
	}
}

// takeBegun returns what begin gave, and says whether it may go on with that.
func (e *executor) takeBegun(open bool) []func(context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	begun := e.begun
	e.begun, e.open = nil, open
	return begun
}

// pop takes the next command and a slot for it, or returns nil.
func (e *executor) pop() *held {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 || e.free == 0 {
		return nil
	}
	e.free--
	h := e.waiting[0]
	e.waiting[0] = nil
	e.waiting = e.waiting[1:]
	return h
}

// expireLate ends what has waited for too long and returns when to look again.
func (e *executor) expireLate() time.Duration {
	var late []*held
	next := time.Hour
	e.mu.Lock()
	keep := e.waiting[:0]
	for _, h := range e.waiting {
		if left := e.left(h); left <= 0 {
			late = append(late, h)
		} else {
			keep, next = append(keep, h), min(next, left)
		}
	}
	clear(e.waiting[len(keep):])
	e.waiting = keep
	e.mu.Unlock()
	for _, h := range late {
		e.expire(h)
	}
	return next
}
