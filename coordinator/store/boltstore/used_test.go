package boltstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

func wantUsed(t *testing.T, s *boltstore.Store) int64 {
	t.Helper()
	n, err := s.Used()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUsedShrinksThoughTheFileDoesNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched, plain)
	empty := wantUsed(t, s)
	if empty <= 0 || empty > 1<<16 {
		t.Errorf("an empty store uses %d bytes", empty)
	}
	for i := range 100 {
		commit(t, s, put(plain, fmt.Sprintf("%03d", i), string(make([]byte, 10_000))))
	}
	full := wantUsed(t, s)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if full < 1_000_000 || full > info.Size() {
		t.Errorf("100 rows of 10,000 bytes use %d of the file's %d", full, info.Size())
	}
	if err := s.DropBefore(t.Context(), plain.Name, []byte("090")); err != nil {
		t.Fatal(err)
	}
	if left := wantUsed(t, s); left > full/5 {
		t.Errorf("10 rows of 100 are left and use %d of %d bytes", left, full)
	}
}

func TestUsedWhileCommitsCome(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"), watched, plain)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 100 {
				op := put(plain, fmt.Sprintf("%d/%03d", w, i), "v")
				if _, err := s.Commit(t.Context(), store.Batch{Ops: []store.Op{op}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 400 {
		wantUsed(t, s)
	}
	writers.Wait()
}

func TestUsedOfAClosedStore(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"), watched)
	s.Close()
	if n, err := s.Used(); err == nil {
		t.Errorf("a closed store uses %d bytes", n)
	}
}
