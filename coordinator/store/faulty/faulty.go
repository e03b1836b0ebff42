// Package faulty is a store that misbehaves on purpose: it is late, refuses,
// applies a commit and does not know it, and ends watches. What is built on a
// store is tested with it.
package faulty

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/musterhq/muster/coordinator/store"
)

// Method names a call.
type Method string

const (
	Get        Method = "Get"
	Scan       Method = "Scan"
	Commit     Method = "Commit"
	Watch      Method = "Watch"
	DropBefore Method = "DropBefore"
)

// Call is what a Plan decides on.
type Call struct {
	Method Method
	Space  store.Space // all but Commit
	Batch  store.Batch // Commit
}

// Fault is what happens to a call; the zero Fault is nothing.
type Fault struct {
	Delay  time.Duration // waits first, at most until ctx ends
	Refuse error         // fails with ErrUnavailable and this reason, nothing applied
	Forget bool          // a Commit that succeeds returns ErrUnknown
	Cut    int           // a Watch ends after so many commits; 0: it does not
}

// Plan decides on each call. It is called from all callers' goroutines.
type Plan func(Call) Fault

// Store is a faulty store.Store.
type Store struct {
	inner store.Store
	plan  Plan

	mu      sync.Mutex
	cuts    map[*context.CancelFunc]struct{}
	watches sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// New wraps inner, which it closes with Close. A nil plan has no faults.
func New(inner store.Store, plan Plan) *Store {
	if plan == nil {
		plan = func(Call) Fault { return Fault{} }
	}
	return &Store{inner: inner, plan: plan, cuts: map[*context.CancelFunc]struct{}{}}
}

// CutWatches ends the watches that there are now, as if their readers were slow.
func (s *Store) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cut := range s.cuts {
		(*cut)()
	}
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, space store.Space, keys ...[]byte) ([]store.KV, error) {
	if _, err := s.meet(ctx, Call{Method: Get, Space: space}); err != nil {
		return nil, err
	}
	return s.inner.Get(ctx, space, keys...)
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, space store.Space, r store.Range) (store.Page, error) {
	if _, err := s.meet(ctx, Call{Method: Scan, Space: space}); err != nil {
		return store.Page{}, err
	}
	return s.inner.Scan(ctx, space, r)
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	fault, err := s.meet(ctx, Call{Method: Commit, Batch: b})
	if err != nil {
		return store.Result{}, err
	}
	r, err := s.inner.Commit(ctx, b)
	if err == nil && fault.Forget {
		return store.Result{}, fmt.Errorf("%w: forgotten on purpose", store.ErrUnknown)
	}
	return r, err
}

// DropBefore implements store.Store.
func (s *Store) DropBefore(ctx context.Context, space store.Space, key []byte) error {
	if _, err := s.meet(ctx, Call{Method: DropBefore, Space: space}); err != nil {
		return err
	}
	return s.inner.DropBefore(ctx, space, key)
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, space store.Space, prefix []byte, after store.Rev) (<-chan []store.Event, error) {
	fault, err := s.meet(ctx, Call{Method: Watch, Space: space})
	if err != nil {
		return nil, err
	}
	ctx, cut := context.WithCancel(ctx)
	in, err := s.inner.Watch(ctx, space, prefix, after)
	if err != nil {
		cut()
		return nil, err
	}
	s.mu.Lock()
	s.cuts[&cut] = struct{}{}
	s.mu.Unlock()
	out := make(chan []store.Event)
	s.watches.Go(func() {
		defer func() {
			cut()
			s.mu.Lock()
			delete(s.cuts, &cut)
			s.mu.Unlock()
		}()
		defer close(out)
		for n := 1; ; n++ {
			events, ok := <-in
			if !ok {
				return
			}
			select {
			case out <- events:
			case <-ctx.Done():
				return
			}
			if n == fault.Cut {
				return
			}
		}
	})
	return out, nil
}

// Close implements store.Store. It has no faults.
func (s *Store) Close() error {
	err := s.inner.Close()
	s.CutWatches()
	s.watches.Wait()
	return err
}

// meet asks the plan, waits and refuses.
func (s *Store) meet(ctx context.Context, c Call) (Fault, error) {
	f := s.plan(c)
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
	if f.Refuse != nil {
		return f, fmt.Errorf("%w: %w", store.ErrUnavailable, f.Refuse)
	}
	return f, nil
}
