package boltstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

func check(t *testing.T, path string) *boltstore.Report {
	t.Helper()
	r, err := boltstore.Check(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantFault(t *testing.T, r *boltstore.Report, words string) {
	t.Helper()
	if r.Sound() || !strings.Contains(strings.Join(r.Faults, "\n"), words) {
		t.Errorf("no word of %q in faults %q", words, r.Faults)
	}
}

func TestCheckOfASoundFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	good := usedFile(t)
	write(t, path, good)
	r := check(t, path)
	if !r.Sound() || r.Size != int64(len(good)) || len(r.Spaces) != 2 {
		t.Errorf("got %+v", r)
	}
	for _, s := range r.Spaces {
		if s.Rows != usedRows || s.Bytes < usedRows*50 {
			t.Errorf("got %+v", s)
		}
	}
	wantUnchanged(t, path, good)
	s := open(t, path, watched, plain)
	if used := wantUsed(t, s); used != r.Used {
		t.Errorf("the report has %d bytes in use, the store %d", r.Used, used)
	}
}

func TestCheckOfAnEmptyStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	open(t, path, watched, plain).Close()
	if r := check(t, path); !r.Sound() || len(r.Spaces) != 2 || r.Spaces[0].Rows != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestCheckLooksAtEachRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	write(t, path, usedFile(t))
	r, err := boltstore.Check(t.Context(), path, func(space store.Space, key, value []byte) error {
		i := 0
		if _, err := fmt.Sscanf(string(key), "row/%d", &i); err != nil {
			return err
		}
		if _, want := usedRow(i); string(value) != want {
			return fmt.Errorf("value %q", value)
		}
		if i == 7 {
			return errors.New("seven")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Count != 2 || len(r.Faults) != 2 {
		t.Errorf("%d faults: %q", r.Count, r.Faults)
	}
	wantFault(t, r, `space "plain": key "row/00007": seven`)
}

func TestCheckNamesOnlyAHundredFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	write(t, path, usedFile(t))
	r, err := boltstore.Check(t.Context(), path, func(store.Space, []byte, []byte) error { return errors.New("bad") })
	if err != nil {
		t.Fatal(err)
	}
	if r.Count != 2*usedRows || len(r.Faults) != 100 {
		t.Errorf("%d faults, %d named", r.Count, len(r.Faults))
	}
}

func TestOfflineNeedsTheFileForItself(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "db")
	missing := filepath.Join(dir, "missing")
	offline := map[string]func(path string) error{
		"check":   func(path string) error { _, err := boltstore.Check(t.Context(), path, nil); return err },
		"compact": func(path string) error { _, err := boltstore.Compact(t.Context(), path, false); return err },
	}
	s := open(t, path, watched)
	for name, do := range offline {
		err := do(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "coordinator running") {
			t.Errorf("%s of an open file: %v", name, err)
		}
		if err := do(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s without a file: %v", name, err)
		}
	}
	s.Close()
	for name, do := range offline {
		if err := do(path); err != nil {
			t.Errorf("%s of a closed file: %v", name, err)
		}
	}
	if exists, _ := filepath.Glob(missing + "*"); len(exists) > 0 {
		t.Errorf("made %v", exists)
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	write(t, path, usedFile(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := boltstore.Check(ctx, path, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestC109CheckTellsWhatOpenRefuses(t *testing.T) {
	good := usedFile(t)
	page := os.Getpagesize()
	for words, damage := range map[string]func([]byte) []byte{
		"is empty":                func([]byte) []byte { return nil },
		"first meta page":         func(b []byte) []byte { clear(b[:page]); return b },
		"cut short":               func(b []byte) []byte { return b[:3*page] },
		"freelist: page":          func(b []byte) []byte { b[freelistAt(b)+8] ^= 2; return b },
		"not a coordinator":       func([]byte) []byte { return foreignFile(t) },
		"not a page of a tree":    func(b []byte) []byte { clear(b[rootAt(b)+8:][:8]); return b },
		"neither used nor free":   func(b []byte) []byte { clear(b[rootAt(b):][:page]); return b },
		"is of revision":          func(b []byte) []byte { return withRevision(t, b, 1<<40) },
		"it has format \"other\"": func(b []byte) []byte { return withFormat(t, b, "other") },
	} {
		path := filepath.Join(t.TempDir(), "db")
		bad := damage(bytes.Clone(good))
		write(t, path, bad)
		wantFault(t, check(t, path), words)
		wantUnchanged(t, path, bad)
	}
}

// TestC109CheckFindsWhatBboltFinds damages each page in turn. What bbolt's own
// check finds, or dies of, must be found.
func TestC109CheckFindsWhatBboltFinds(t *testing.T) {
	t.Parallel()
	good := usedFile(t)
	page := os.Getpagesize()
	dir := t.TempDir()
	found, missed := 0, 0
	for n := 2; n < len(good)/page; n++ {
		if bytes.Count(good[n*page:(n+1)*page], []byte{0}) == page {
			continue // never used
		}
		for name, damage := range map[string]func([]byte){
			"header": func(p []byte) { _, _ = rand.NewChaCha8([32]byte{byte(n), 1}).Read(p[:16]) },
			"child":  func(p []byte) { p[16+8]++ }, // of a branch: one page is used twice, another not at all
			"body":   func(p []byte) { _, _ = rand.NewChaCha8([32]byte{byte(n), 2}).Read(p[16:256]) },
		} {
			path := filepath.Join(dir, "db")
			bad := bytes.Clone(good)
			damage(bad[n*page : (n+1)*page])
			write(t, path, bad)
			r := check(t, path)
			if !r.Sound() {
				found++
				continue
			}
			missed++
			if code, out := verify(t, path); code != 0 {
				t.Errorf("page %d %s: no fault, bbolt says %s", n, name, out)
			}
		}
	}
	t.Logf("%d damaged files with faults, %d without", found, missed)
	if found == 0 || missed == 0 {
		t.Error("the pages of the file are too much alike to show anything")
	}
}

// verify lets bbolt check the file, in a process that it may end.
func verify(t *testing.T, path string) (code int, out string) {
	cmd := child(t.Context(), "verify", path)
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b[:min(len(b), 500)])
}

func verifyWithBbolt(path string) (code int) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			fmt.Println(err)
			code = 1
		}
		return nil
	})
	return code
}

// withRevision gives the file a row of a revision that was never reached.
func withRevision(t *testing.T, b []byte, rev uint64) []byte {
	record := append(binary.BigEndian.AppendUint64(nil, rev), 'v')
	return withUpdate(t, b, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("rows/plain")).Put([]byte("row/00000"), record) })
}

func withFormat(t *testing.T, b []byte, format string) []byte {
	return withUpdate(t, b, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("muster")).Put([]byte("format"), []byte(format)) })
}

func withUpdate(t *testing.T, b []byte, fn func(*bbolt.Tx) error) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "changed")
	write(t, path, b)
	db, err := bbolt.Open(path, 0o600, nil)
	if err == nil {
		err = errors.Join(db.Update(fn), db.Close())
	}
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}
