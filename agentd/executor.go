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
	free    int                              // slots
	occupy  func(rest func(context.Context)) // runs rest in a slot that was taken; nil: run does not work
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

// begin runs rest at once, on a goroutine of its own, if there is a slot and no
// command waits for one. rest gets the context of run, and run waits for it.
func (e *executor) begin(rest func(context.Context)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.occupy == nil || e.free == 0 || len(e.waiting) > 0 {
		return false
	}
	e.free--
	e.occupy(rest)
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
	occupy := func(rest func(context.Context)) {
		running.Go(func() {
			defer e.yield()
			rest(ctx)
		})
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	e.open(occupy)
	defer e.open(nil) // before running is waited for
	for ctx.Err() == nil {
		next := e.expireLate()
		for h := e.pop(); h != nil; h = e.pop() {
			if rest := e.start(ctx, h); rest != nil {
				occupy(func(context.Context) { rest() })
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
}

// open sets what begin may use; nil: it may not any more.
func (e *executor) open(occupy func(rest func(context.Context))) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.occupy = occupy
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
