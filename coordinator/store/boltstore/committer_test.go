package boltstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
)

var errDisk = errors.New("input/output error")

func row(key string) store.Batch {
	return store.Batch{Ops: []store.Op{{Space: "s", Key: []byte(key)}}}
}

func openOne(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "db"), Options{}, store.SpaceDef{Name: "s", Watched: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// failing lets a commit reach the file and then says that its fsync failed, as
// bbolt does. Only the committer may call it, so it is set before any commit.
func failing(s *Store, fails func() bool) {
	update := s.update
	s.update = func(fn func(*bbolt.Tx) error) (int, error) {
		id, err := update(fn)
		if err == nil && fails() {
			err = errDisk
		}
		return id, err
	}
}

func TestFailedFsyncThatWorksAgainIsNoFailure(t *testing.T) {
	s := openOne(t)
	failing(s, func() bool { return true })
	for _, key := range []string{"a", "b"} {
		if _, err := s.Commit(t.Context(), row(key)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnsureCommitIsUnknownAndHoldsTheNext(t *testing.T) {
	s := openOne(t)
	broken := true
	failing(s, func() bool { return broken })
	sync := s.sync
	s.sync = func() error {
		if broken {
			return errDisk
		}
		return sync()
	}
	ch, err := s.Watch(t.Context(), "s", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), row("unsure")); !errors.Is(err, store.ErrUnknown) || !errors.Is(err, errDisk) {
		t.Fatalf("got error %v", err)
	}
	// Readers see it, so watchers must hear of it.
	if events := <-ch; string(events[0].Key) != "unsure" {
		t.Fatalf("watched %q", events[0].Key)
	}
	if _, err := s.Commit(t.Context(), row("held")); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("got error %v", err)
	}
	p, err := s.Scan(t.Context(), "s", store.Range{})
	if err != nil || len(p.Items) != 1 {
		t.Fatalf("%d rows, %v", len(p.Items), err)
	}
	broken = false
	r, err := s.Commit(t.Context(), row("after"))
	if err != nil || r.Rev <= p.Rev {
		t.Fatalf("got %v, %v", r, err)
	}
}

func TestBatchesOfOneTransactionFailAlone(t *testing.T) {
	s := openOne(t)
	waits := func(b store.Batch) *request {
		p, err := b.Prepare(s.spaces)
		if err != nil {
			t.Fatal(err)
		}
		return &request{batch: p, done: make(chan answer, 1)}
	}
	first, second, third, fourth := row("a"), row("a"), row("b"), row("a")
	second.Ops[0].If = store.Absent()
	fourth.Ops[0].Kind = store.PutIfAbsent
	rs := []*request{waits(first), waits(second), waits(third), waits(fourth)}
	before := s.rev
	w, err := s.write(rs)
	if err != nil {
		t.Fatal(err)
	}
	if a := w.answers; a[0].err != nil || !errors.Is(a[1].err, store.ErrConflict) || a[2].err != nil || len(a[3].result.Skipped) != 1 {
		t.Fatalf("answers %+v", a)
	}
	if a := w.answers; a[0].result.Rev != before+1 || a[2].result.Rev != before+2 || s.rev != before+2 || len(w.changes) != 2 {
		t.Fatalf("answers %+v, at %d", a, s.rev)
	}
}

// held makes each transaction wait for one receive from the channel it returns,
// and counts them.
func held(s *Store) (begun chan struct{}, proceed chan struct{}) {
	begun, proceed = make(chan struct{}, 100), make(chan struct{})
	update := s.update
	s.update = func(fn func(*bbolt.Tx) error) (int, error) {
		begun <- struct{}{}
		<-proceed
		return update(fn)
	}
	return begun, proceed
}

// queued waits until n requests wait for the committer.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); len(s.queue) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", len(s.queue), n)
		}
		runtime.Gosched()
	}
}

func TestWaitingBatchesShareATransaction(t *testing.T) {
	s := openOne(t)
	begun, proceed := held(s)
	errs := make(chan error, 101)
	commit := func(key string) {
		_, err := s.Commit(t.Context(), row(key))
		errs <- err
	}
	go commit("first")
	<-begun
	for i := range 100 {
		go commit(fmt.Sprint(i))
	}
	queued(t, s, 100)
	close(proceed)
	for range 101 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if n := 1 + len(begun); n != 2 {
		t.Fatalf("%d transactions, want 2", n)
	}
}

func TestCallerThatLeavesIsToldWhatItMayKnow(t *testing.T) {
	s := openOne(t)
	begun, proceed := held(s)
	ctx, cancel := context.WithCancel(t.Context())
	taken, waiting := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Commit(ctx, row("taken"))
		taken <- err
	}()
	<-begun
	go func() {
		_, err := s.Commit(ctx, row("waiting"))
		waiting <- err
	}()
	queued(t, s, 1)
	cancel()
	if err := <-taken; !errors.Is(err, store.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("taken: got error %v", err)
	}
	if err := <-waiting; !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknown) {
		t.Fatalf("waiting: got error %v", err)
	}
	close(proceed)
	if _, err := s.Commit(t.Context(), row("after")); err != nil {
		t.Fatal(err)
	}
	kvs, err := s.Get(t.Context(), "s", []byte("taken"), []byte("waiting"))
	if err != nil || kvs[0].Rev == 0 || kvs[1].Rev != 0 {
		t.Fatalf("got %v, %v", kvs, err)
	}
}
