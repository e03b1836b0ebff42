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
	slots  int
	left   func(*held) time.Duration                 // until it expires
	start  func(ctx context.Context, h *held) func() // decides to start it; the rest of the run blocks; nil: it waits no more
	expire func(*held)

	mu      sync.Mutex
	waiting []*held
	wake    chan struct{}
}

func newExecutor(slots int) *executor {
	return &executor{slots: slots, wake: make(chan struct{}, 1)}
}

// put queues a command. Whoever calls it keeps the queue within its limit.
func (e *executor) put(h *held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, h)
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
	ended := make(chan struct{}, e.slots)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	free := e.slots
	for ctx.Err() == nil {
		next := e.expireLate()
		for free > 0 {
			h := e.pop()
			if h == nil {
				break
			}
			rest := e.start(ctx, h)
			if rest == nil {
				continue
			}
			free--
			running.Go(func() {
				rest()
				ended <- struct{}{}
			})
		}
		timer.Reset(next)
		select {
		case <-e.wake:
		case <-ended:
			free++
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

func (e *executor) pop() *held {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return nil
	}
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
