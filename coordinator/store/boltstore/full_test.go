package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// TestFullDisk runs in a process of its own whose files cannot grow: the same
// short writes as on a full disk, without the rights to make one.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if code, out := runChild(t, "fill", path); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	wantSound(t, path)
	if rows := rowsIn(t, open(t, path, watched, plain), watched); len(rows) == 0 || rows["after"] != "1" {
		t.Fatalf("%d rows, after: %q", len(rows), rows["after"])
	}
}

func fillTheDisk(path string) int {
	signal.Ignore(syscall.SIGXFSZ)
	room := func(bytes uint64) {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			panic(err)
		}
		limit.Cur = min(bytes, limit.Max)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			panic(err)
		}
	}
	fail := func(format string, args ...any) int {
		fmt.Printf(format+"\n", args...)
		return 1
	}
	ctx := context.Background()
	s, err := boltstore.Open(path, boltstore.Options{}, watched, plain)
	if err != nil {
		return fail("open: %v", err)
	}
	defer s.Close()
	ch, err := s.Watch(ctx, watched.Name, nil, 0)
	if err != nil {
		return fail("watch: %v", err)
	}
	row := func(key, value string) error {
		_, err := s.Commit(ctx, store.Batch{Ops: []store.Op{put(watched, key, value)}})
		return err
	}
	for round := range 3 {
		room(1 << 20 << round)
		n := 0
		for err = nil; err == nil; n++ {
			err = row(fmt.Sprintf("%d/%04d", round, n), strings.Repeat("v", 10_000))
			if err == nil {
				<-ch
			}
		}
		n--
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "too large") {
			return fail("full: %v", err)
		}
		for range 20 { // again and again, as a batcher would
			if err := row(fmt.Sprintf("%d/%04d", round, n), strings.Repeat("v", 10_000)); !errors.Is(err, store.ErrUnavailable) {
				return fail("still full: %v", err)
			}
			p, err := s.Scan(ctx, watched.Name, store.Range{Prefix: fmt.Appendf(nil, "%d/", round)})
			if err != nil || len(p.Items) != n {
				return fail("reads while full: %d rows of %d, %v", len(p.Items), n, err)
			}
		}
		room(1 << 30)
		if err := row("after", "1"); err != nil {
			return fail("with room again: %v", err)
		}
		if events := <-ch; string(events[0].Key) != "after" {
			return fail("watched %q", events[0].Key)
		}
	}
	return 0
}
