package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
)

const (
	mergedRequests = 256     // that share a transaction at most
	mergedBytes    = 8 << 20 // after which no more join
	dropAtOnce     = 1000    // rows that DropBefore removes in one transaction
)

// request is what waits for the committer: a batch, or a part of DropBefore.
type request struct {
	batch *store.Prepared
	space store.Space // drop rows of it
	below []byte      // that are smaller

	state atomic.Int32 // waiting, then taken by the committer or left by its caller
	done  chan answer  // cap 1
}

const (
	waiting int32 = iota
	taken
	left
)

type answer struct {
	result store.Result
	more   bool // DropBefore is not at its end
	err    error
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	p, err := b.Prepare(s.spaces)
	if err != nil {
		return store.Result{}, err
	}
	a := s.submit(ctx, &request{batch: p})
	return a.result, a.err
}

// DropBefore implements store.Store. It takes turns with commits.
func (s *Store) DropBefore(ctx context.Context, space store.Space, key []byte) error {
	if err := s.spaces.Check(space); err != nil {
		return err
	}
	key = bytes.Clone(key)
	for {
		if a := s.submit(ctx, &request{space: space, below: key}); a.err != nil || !a.more {
			return a.err
		}
	}
}

// submit hands r to the committer and waits for its answer or for ctx.
func (s *Store) submit(ctx context.Context, r *request) answer {
	if err := ctx.Err(); err != nil {
		return answer{err: err}
	}
	r.done = make(chan answer, 1)
	if err := s.enqueue(ctx, r); err != nil {
		return answer{err: err}
	}
	select {
	case a := <-r.done:
		return a
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(waiting, left) {
		return answer{err: ctx.Err()}
	}
	select {
	case a := <-r.done:
		return a
	default:
		return answer{err: fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())}
	}
}

func (s *Store) enqueue(ctx context.Context, r *request) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("%w: the store is closed", store.ErrUnavailable)
	}
	select {
	case s.queue <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commitLoop is the one goroutine that writes.
func (s *Store) commitLoop() {
	defer close(s.committed)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for r := range s.queue {
		if rs := s.gather(r); len(rs) > 0 {
			s.commit(rs)
		}
	}
}

// gather takes the requests that wait by now.
func (s *Store) gather(r *request) []*request {
	var rs []*request
	for size := 0; ; {
		if r.state.CompareAndSwap(waiting, taken) {
			rs = append(rs, r)
			if r.batch != nil {
				size += r.batch.Size()
			}
		}
		if len(rs) == mergedRequests || size >= mergedBytes {
			return rs
		}
		var ok bool
		select {
		case r, ok = <-s.queue:
			if !ok {
				return rs
			}
		default:
			return rs
		}
	}
}

// commit does the requests in one transaction, publishes it and answers.
func (s *Store) commit(rs []*request) {
	w, err := s.write(rs)
	if f := (*fault)(nil); errors.As(err, &f) && errors.Is(err, store.ErrUnavailable) && len(rs) > 1 {
		for _, r := range rs { // the damage is in the way of some, not of all
			s.commit([]*request{r})
		}
		return
	}
	s.fan.Publish(w.changes)
	for i, r := range rs {
		a := w.answers[i]
		if err != nil && !errors.Is(a.err, store.ErrConflict) {
			a = answer{err: err}
		}
		r.done <- a
	}
}

// written is what a transaction came to.
type written struct {
	rev     store.Rev
	changes []store.Change
	answers []answer
}

// errNothing rolls back a transaction that changed nothing, to save its fsync.
var errNothing = errors.New("nothing to write")

// write does the requests in one transaction, each at a revision of its own.
// With ErrUnavailable nothing was applied and nothing is to be published. With
// ErrUnknown it was, but it may not outlast a crash.
func (s *Store) write(rs []*request) (written, error) {
	var w written
	err := s.settle()
	id := 0
	if err == nil {
		id, err = s.update(func(tx *bbolt.Tx) (err error) {
			w, err = s.apply(tx, rs)
			return err
		})
	}
	if err == nil || errors.Is(err, errNothing) {
		s.rev = w.rev
		return w, nil
	}
	if id != 0 && s.sees(id) {
		s.rev, s.unsettled = w.rev, true
		if s.settle() == nil {
			return w, nil
		}
		return w, fmt.Errorf("%w: store file %s: %w", store.ErrUnknown, s.path, err)
	}
	return written{answers: make([]answer, len(rs))}, fmt.Errorf("%w: store file %s: %w", store.ErrUnavailable, s.path, err)
}

func (s *Store) apply(tx *bbolt.Tx, rs []*request) (written, error) {
	w := written{rev: s.rev, answers: make([]answer, len(rs))}
	buckets := map[store.Space]*bbolt.Bucket{}
	bucket := func(space store.Space) *bbolt.Bucket {
		b := buckets[space]
		if b == nil {
			b = tx.Bucket(bucketOf(space))
			buckets[space] = b
		}
		return b
	}
	changed := false
	for i, r := range rs {
		if r.batch == nil {
			dropped, more, err := drop(bucket(r.space), r.below)
			if err != nil {
				return written{}, err
			}
			changed = changed || dropped
			w.answers[i].more = more
			continue
		}
		a, err := r.batch.Apply(w.rev+1, func(space store.Space) store.Table { return bucket(space) })
		if errors.Is(err, store.ErrConflict) {
			w.answers[i].err = err
			continue
		}
		if err != nil {
			return written{}, err
		}
		if a.Wrote {
			changed = true
			w.rev++
		}
		w.answers[i].result = a.Result
		w.changes = append(w.changes, a.Changes...)
	}
	if !changed {
		return w, errNothing
	}
	return w, tx.Bucket(ownBucket).SetSequence(uint64(w.rev))
}

// drop deletes the first rows of b that are below the key.
func drop(b *bbolt.Bucket, below []byte) (dropped, more bool, err error) {
	var keys [][]byte // bbolt's cursor loses its place when rows go
	c := b.Cursor()
	for k, _ := c.First(); k != nil && bytes.Compare(k, below) < 0; k, _ = c.Next() {
		if more = len(keys) == dropAtOnce; more {
			break
		}
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return false, false, err
		}
	}
	return len(keys) > 0, more, nil
}

// sees reports whether readers see the transaction.
func (s *Store) sees(id int) bool {
	seen := false
	err := s.view(func(tx *bbolt.Tx) error {
		seen = tx.ID() >= id
		return nil
	})
	return err == nil && seen
}

// settle makes a commit durable whose meta page reached the file and whose
// fsync failed. bbolt goes on from such a commit, and would reuse pages that a
// crash could still bring back, so nothing is written until this has worked.
func (s *Store) settle() error {
	if !s.unsettled {
		return nil
	}
	// bbolt has also forgotten that readers of the state before may be under way.
	s.reading.Lock()
	defer s.reading.Unlock()
	metas := make([]byte, 2*s.db.Info().PageSize)
	if _, err := s.file.ReadAt(metas, 0); err != nil {
		return err
	}
	// Written anew, because the failed fsync may have left the pages marked clean.
	if _, err := s.file.WriteAt(metas, 0); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	s.unsettled = false
	return nil
}
