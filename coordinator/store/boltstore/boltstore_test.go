package boltstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	"github.com/musterhq/muster/coordinator/store/faulty"
	"github.com/musterhq/muster/coordinator/store/storetest"
)

var (
	watched = store.SpaceDef{Name: "watched", Watched: true}
	plain   = store.SpaceDef{Name: "plain"}
)

func TestContract(t *testing.T) {
	storetest.Run(t, openFresh)
	t.Run("Follow", func(t *testing.T) { storetest.Follow(t, openFresh) })
	t.Run("FollowWithFaults", func(t *testing.T) {
		storetest.Follow(t, func(t *testing.T, spaces ...store.SpaceDef) store.Store {
			return faulty.New(openFresh(t, spaces...), faulty.Random(1, faulty.Odds{Refuse: 0.2, Forget: 0.2, Cut: 0.8}))
		})
	})
}

func openFresh(t *testing.T, spaces ...store.SpaceDef) store.Store {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	return open(t, filepath.Join(dir, "db"), spaces...)
}

func open(t *testing.T, path string, spaces ...store.SpaceDef) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path, boltstore.Options{}, spaces...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(space store.SpaceDef, key, value string) store.Op {
	return store.Op{Space: space.Name, Key: []byte(key), Value: []byte(value)}
}

func commit(t *testing.T, s store.Store, ops ...store.Op) store.Result {
	t.Helper()
	r, err := s.Commit(t.Context(), store.Batch{Ops: ops})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rowsIn reads all rows of a space.
func rowsIn(t *testing.T, s store.Store, space store.SpaceDef) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for r := (store.Range{}); ; {
		p, err := s.Scan(t.Context(), space.Name, r)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range p.Items {
			rows[string(kv.Key)] = string(kv.Value)
			r.After = kv.Key
		}
		if !p.More {
			return rows
		}
	}
}

func TestRowsOutlastTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched, plain)
	first := commit(t, s, put(watched, "a", "1"), put(plain, "b", "2")).Rev
	last := commit(t, s, put(watched, "a", "3")).Rev
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	another := store.SpaceDef{Name: "another"}
	s = open(t, path, watched, plain, another)
	if s.Created() {
		t.Error("an old file is said to be new")
	}
	kvs, err := s.Get(t.Context(), watched.Name, []byte("a"))
	if err != nil || string(kvs[0].Value) != "3" || kvs[0].Rev != last {
		t.Fatalf("got %v, %v", kvs, err)
	}
	if rows := rowsIn(t, s, plain); rows["b"] != "2" {
		t.Fatalf("got %v", rows)
	}
	if _, err := s.Watch(t.Context(), watched.Name, nil, first); !errors.Is(err, store.ErrCompacted) {
		t.Fatalf("a watch from before the start: got error %v", err)
	}
	ch, err := s.Watch(t.Context(), watched.Name, nil, last)
	if err != nil {
		t.Fatal(err)
	}
	if next := commit(t, s, put(watched, "c", "4"), put(another, "c", "4")).Rev; next <= last {
		t.Fatalf("revision %d after %d", next, last)
	}
	if events := <-ch; string(events[0].Key) != "c" {
		t.Fatalf("watched %v", events)
	}
}

// TestManySmallCommitsShareTransactions makes the committer merge.
func TestManySmallCommitsShareTransactions(t *testing.T) {
	const callers = 2000
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched)
	ch, err := s.Watch(t.Context(), watched.Name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			b := store.Batch{Ops: []store.Op{put(watched, fmt.Sprintf("%05d", i), "x")}}
			if i%4 == 0 { // three of four of these lose
				b.Ops[0].Key = fmt.Appendf(nil, "shared/%d", i%50)
				b.Ops[0].If = store.Absent()
			}
			_, err := s.Commit(t.Context(), b)
			errs <- err
		}()
	}
	lost := 0
	for range callers {
		if err := <-errs; errors.Is(err, store.ErrConflict) {
			lost++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if want := callers/4 - 25; lost != want {
		t.Fatalf("%d batches lost, want %d", lost, want)
	}
	var last store.Rev
	for range callers - lost {
		events := <-ch
		if len(events) != 1 || events[0].Rev != last+1 {
			t.Fatalf("got %d events at %d after %d", len(events), events[0].Rev, last)
		}
		last++
	}
	s.Close()
	if rows := rowsIn(t, open(t, path, watched), watched); len(rows) != callers-lost {
		t.Fatalf("%d rows, want %d", len(rows), callers-lost)
	}
}
