package boltstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// sparseFile makes a store file of which most was deleted again.
func sparseFile(t *testing.T, path string) (rows map[string]string) {
	t.Helper()
	s := open(t, path, watched, plain)
	for i := range 300 {
		key := fmt.Sprintf("%03d", i)
		commit(t, s, put(watched, key, strings.Repeat(key, 1000)), put(plain, key, "v"))
	}
	if err := s.DropBefore(t.Context(), watched.Name, []byte("250")); err != nil {
		t.Fatal(err)
	}
	rows = rowsIn(t, s, watched)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func wantFiles(t *testing.T, path string, suffixes ...string) {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range suffixes {
		want = append(want, path+s)
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("files %v, want %v", names, want)
	}
}

func TestCompactKeepsRowsAndDropsFreePages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	rows := sparseFile(t, path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path+".compact", []byte("left by a crash"))
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	c, err := boltstore.Compact(t.Context(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	if c.Before != int64(len(before)) || c.After > c.Before/3 || c.Old != path+".old" {
		t.Errorf("got %+v", c)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != c.After || info.Mode() != 0o640 {
		t.Errorf("got %v, %v", info, err)
	}
	wantFiles(t, path, "", ".old")
	if old, err := os.ReadFile(path + ".old"); err != nil || !bytes.Equal(old, before) {
		t.Errorf("the old file is not what it was: %v", err)
	}
	wantSound(t, path)
	rev := check(t, path).Rev
	if old := check(t, path+".old").Rev; rev != old {
		t.Errorf("revision %d, was %d", rev, old)
	}
	s := open(t, path, watched, plain)
	if got := rowsIn(t, s, watched); !maps.Equal(got, rows) {
		t.Errorf("%d rows, want %d", len(got), len(rows))
	}
	if r := commit(t, s, put(watched, "k", "v")); r.Rev != rev+1 {
		t.Errorf("the next commit has revision %d after %d", r.Rev, rev)
	}
}

func TestCompactOverwritesNoOlderCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	sparseFile(t, path)
	write(t, path+".old", []byte("precious"))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := boltstore.Compact(t.Context(), path, false); err == nil || !strings.Contains(err.Error(), path+".old") {
		t.Fatalf("got %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
		t.Errorf("the file was changed: %v", err)
	}
	if c, err := boltstore.Compact(t.Context(), path, true); err != nil || c.Old != "" {
		t.Errorf("got %+v, %v", c, err)
	}
	if b, err := os.ReadFile(path + ".old"); err != nil || string(b) != "precious" {
		t.Errorf("the older copy is %.20q, %v", b, err)
	}
	wantFiles(t, path, "", ".old")
}

func TestCompactGoesOnAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	sparseFile(t, path)
	if err := os.Link(path, path+".old"); err != nil { // the last step before the new file got its name
		t.Fatal(err)
	}
	if _, err := boltstore.Compact(t.Context(), path, false); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, path, "", ".old")
}

func TestC109CompactRefusesADamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	bad := usedFile(t)
	clear(bad[rootAt(bad):][:os.Getpagesize()])
	write(t, path, bad)
	if _, err := boltstore.Compact(t.Context(), path, false); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
	wantUnchanged(t, path, bad)
}

func TestCompactEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	sparseFile(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := boltstore.Compact(ctx, path, false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	wantFiles(t, path, "")
}

func TestCompactOfAnEmptyStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	open(t, path, watched, plain).Close()
	if _, err := boltstore.Compact(t.Context(), path, true); err != nil {
		t.Fatal(err)
	}
	if r := check(t, path); !r.Sound() || len(r.Spaces) != 2 {
		t.Errorf("got %+v", r)
	}
	if s := open(t, path, watched, plain); s.Created() {
		t.Error("the compacted file is taken for none")
	}
}
