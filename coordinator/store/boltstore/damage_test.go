package boltstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

const (
	usedRows   = 200 // of the file that useOnce is for
	usedWrites = 20  // that it does, spread over the rows
	exitIntact = 0
	exitRefuse = 3 // Open gave an error
	exitErrors = 4 // some requests gave errors, the others right answers
	exitWrong  = 5 // wrong data without an error
)

func usedRow(i int) (key, value string) {
	return fmt.Sprintf("row/%05d", i), fmt.Sprint(i, strings.Repeat("v", 50+i%200))
}

// usedFile makes a real store file with branch pages, free pages and rows that
// were overwritten.
func usedFile(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched, plain)
	for i := range usedRows {
		key, value := usedRow(i)
		if i%40 == 0 {
			commit(t, s, put(watched, key, "old"), put(plain, key, "old"))
		}
		commit(t, s, put(watched, key, value), put(plain, key, value))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// useOnce starts, lists and writes as a coordinator would, and says how it went.
func useOnce(path string) int {
	s, err := boltstore.Open(path, boltstore.Options{}, watched, plain)
	if err != nil {
		fmt.Println(err)
		return exitRefuse
	}
	defer s.Close()
	ctx := context.Background()
	code := exitIntact
	failed := func(what string, err error) {
		code = exitErrors
		fmt.Println(what, err)
	}
	for _, space := range []store.SpaceDef{watched, plain} {
		for _, reverse := range []bool{false, true} {
			n := 0
			for r := (store.Range{Limit: 100, Reverse: reverse}); ; {
				p, err := s.Scan(ctx, space.Name, r)
				if err != nil {
					failed("scan", err)
					break
				}
				n += len(p.Items)
				if !p.More {
					if n != usedRows {
						fmt.Printf("scan: %d rows of %d\n", n, usedRows)
						return exitWrong
					}
					break
				}
				r.After = p.Items[len(p.Items)-1].Key
			}
		}
		for i := range usedRows {
			key, value := usedRow(i)
			kvs, err := s.Get(ctx, space.Name, []byte(key))
			if err != nil {
				failed("get "+key, err)
			} else if string(kvs[0].Value) != value {
				fmt.Printf("get %s: %.20q\n", key, kvs[0].Value)
				return exitWrong
			}
		}
	}
	// Several callers at once, so that the damage to some meets the others.
	var all sync.WaitGroup
	errs := make([]error, usedWrites)
	for i := range errs {
		all.Go(func() {
			key, _ := usedRow(i * usedRows / usedWrites)
			_, errs[i] = s.Commit(ctx, store.Batch{Ops: []store.Op{put(watched, key, "new"), put(plain, key, "new")}})
		})
	}
	all.Wait()
	for i, err := range errs {
		key, _ := usedRow(i * usedRows / usedWrites)
		if err != nil {
			failed("commit "+key, err)
			continue
		}
		kvs, err := s.Get(ctx, watched.Name, []byte(key))
		if err != nil || string(kvs[0].Value) != "new" {
			fmt.Println("get of what was committed:", kvs, err)
			return exitWrong
		}
	}
	if err := s.DropBefore(ctx, plain.Name, []byte("row/00150")); err != nil {
		failed("drop", err)
	}
	return code
}

// TestC109DamagedFile damages copies of a real file in the ways of the case.
func TestC109DamagedFile(t *testing.T) {
	good := usedFile(t)
	page := os.Getpagesize()
	random := func(b []byte) {
		r := rand.NewChaCha8([32]byte{1})
		_, _ = r.Read(b)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"text":                func([]byte) []byte { return bytes.Repeat([]byte("no store\n"), 64<<10/9) },
		"100 bytes":           func(b []byte) []byte { return b[:100] },
		"10 bytes":            func(b []byte) []byte { return b[:10] },
		"one page":            func(b []byte) []byte { return b[:page] },
		"both metas random":   func(b []byte) []byte { random(b[:2*page]); return b },
		"first meta random":   func(b []byte) []byte { random(b[:page]); return b },
		"second meta random":  func(b []byte) []byte { random(b[page : 2*page]); return b },
		"all but metas":       func(b []byte) []byte { random(b[2*page:]); return b },
		"three pages":         func(b []byte) []byte { return b[:3*page] },
		"half":                func(b []byte) []byte { return b[:len(b)/2] },
		"another bbolt file":  func([]byte) []byte { return foreignFile(t) },
		"zeroes":              func(b []byte) []byte { clear(b); return b },
		"a bit of the meta":   func(b []byte) []byte { b[30] ^= 1; return b },
		"freelist flag":       func(b []byte) []byte { b[freelistAt(b)+8] ^= 2; return b },
		"freelist's own page": func(b []byte) []byte { b[freelistAt(b)+16] = 0; return b },
		"freelist too long":   func(b []byte) []byte { b[freelistAt(b)+11] = 0xfe; return b },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			bad := damage(bytes.Clone(good))
			write(t, path, bad)
			code, out := runChild(t, "use", path)
			if code != exitRefuse || !strings.Contains(out, path) || !strings.Contains(out, "move it away") || strings.Count(out, "\n") != 1 {
				t.Errorf("exit %d, want one line with the file and the way out:\n%s", code, out)
			}
			wantUnchanged(t, path, bad)
		})
	}
}

// freelistAt and rootAt find pages of the newer meta.
func freelistAt(b []byte) int { return pageAt(b, 32) }
func rootAt(b []byte) int     { return pageAt(b, 16) }

func pageAt(b []byte, field int) int {
	page := os.Getpagesize()
	meta := b[16:]
	if other := b[page+16:]; binary.NativeEndian.Uint64(other[48:]) > binary.NativeEndian.Uint64(meta[48:]) {
		meta = other
	}
	return int(binary.NativeEndian.Uint64(meta[field:])) * page
}

// TestC109EachPageZeroed zeroes each page of a real file in turn, and fills it
// at random: the file is refused, or each answer is right or an error.
func TestC109EachPageZeroed(t *testing.T) {
	t.Parallel()
	good := usedFile(t)
	page := os.Getpagesize()
	dir := t.TempDir()
	seen := map[int]int{}
	for n := range len(good) / page {
		if bytes.Count(good[n*page:(n+1)*page], []byte{0}) == page {
			continue // never used
		}
		for name, damage := range map[string]func([]byte){
			"zeroed": func(p []byte) { clear(p) },
			"random": func(p []byte) { _, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p) },
			// A good header, so that bbolt goes on into the nonsense.
			"random body": func(p []byte) { _, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p[16:]) },
		} {
			path := filepath.Join(dir, "db")
			bad := bytes.Clone(good)
			damage(bad[n*page : (n+1)*page])
			write(t, path, bad)
			code, out := runChild(t, "use", path)
			seen[code]++
			switch code {
			case exitIntact:
			case exitRefuse:
				wantUnchanged(t, path, bad)
				fallthrough
			case exitErrors:
				if !strings.Contains(out, path) {
					t.Errorf("page %d %s: the file is not named:\n%s", n, name, out)
				}
			case exitWrong:
				if name != "random body" { // bbolt has no checksums: that one may show
					t.Errorf("page %d %s: wrong data:\n%s", n, name, out)
				}
			default:
				t.Errorf("page %d %s: exit %d:\n%s", n, name, code, out)
			}
		}
	}
	t.Logf("intact %d, refused %d, errors %d, wrong %d",
		seen[exitIntact], seen[exitRefuse], seen[exitErrors], seen[exitWrong])
	if seen[exitIntact] == 0 || seen[exitRefuse] == 0 || seen[exitErrors] == 0 {
		t.Error("the pages of the file are too much alike to show anything")
	}
}

// TestC109FileCutWhileOpen cuts the file of a running store.
func TestC109FileCutWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched)
	commit(t, s, put(watched, "k", "1"))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), watched.Name, []byte("k"))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), path) {
		t.Fatalf("got error %v", err)
	}
	if _, err = s.Commit(t.Context(), store.Batch{Ops: []store.Op{put(watched, "k", "2")}}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("got error %v", err)
	}
}

// TestC109RefusedFileIsLetGo puts a good copy back in the same process.
func TestC109RefusedFileIsLetGo(t *testing.T) {
	good := usedFile(t)
	bad := bytes.Clone(good)
	clear(bad[rootAt(bad):][:os.Getpagesize()])
	path := filepath.Join(t.TempDir(), "db")
	write(t, path, bad)
	for range 2 {
		wantRefusal(t, path, boltstore.Options{LockWait: time.Millisecond}, "damaged page", "move it away")
	}
	wantUnchanged(t, path, bad)
	write(t, path, good)
	if rows := rowsIn(t, open(t, path, watched, plain), watched); len(rows) != usedRows {
		t.Fatalf("%d rows of %d", len(rows), usedRows)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantUnchanged(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s was changed", path)
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != 1 {
		t.Errorf("files beside it: %v", names)
	}
}
