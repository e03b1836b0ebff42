package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// scanned is a store that asks before each Scan, by its prefix.
type scanned struct {
	*faulty.Store
	before atomic.Pointer[func(prefix string) error]
}

func (s *scanned) Scan(ctx context.Context, sp store.Space, r store.Range) (store.Page, error) {
	if before := s.before.Load(); before != nil {
		if err := (*before)(string(r.Prefix)); err != nil {
			return store.Page{}, err
		}
	}
	return s.Store.Scan(ctx, sp, r)
}

func scannedTest(t *testing.T, inFlight int, body func(t *testing.T, r *rig, s *scanned)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &scanned{Store: faulty.New(r.store, nil)}
		r.store, r.cfg.InFlight = s, inFlight
		r.start()
		body(t, r, s)
		r.stop()
		r.store.Close()
	})
}

// What was committed while nothing could be read is seen when it can be.
func TestReloadIsTriedUntilAllIsRead(t *testing.T) {
	scannedTest(t, 0, func(t *testing.T, r *rig, s *scanned) {
		a := r.peer("a").join()
		defer a.leave()
		id := r.submit(to("a")).Id
		refuse := func(prefix string) error {
			if prefix == resPrefix+id+"/" {
				return errors.New("not now")
			}
			return nil
		}
		s.before.Store(&refuse)
		s.CutWatches()
		synctest.Wait()
		a.report(id, musterv1.Target_SUCCEEDED)
		a.wantAcked(id)
		time.Sleep(10 * time.Second)
		s.before.Store(nil)
		time.Sleep(10 * time.Second)
		if got := r.command(id); got.State != musterv1.Command_DONE || got.Counts.Succeeded != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// A pack that is stored when the watch is cut, and one that is stored while all is
// read again, are not kept for a watch that does not bring them.
func TestCutWatchKeepsNoPacks(t *testing.T) {
	scannedTest(t, 0, func(t *testing.T, r *rig, s *scanned) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		defer b.leave()
		id := r.submit(to("a", "b")).Id
		wait := func(prefix string) error {
			if prefix == openPrefix {
				time.Sleep(time.Second)
			}
			return nil
		}
		s.before.Store(&wait)
		s.CutWatches()
		a.report(id, musterv1.Target_SUCCEEDED)
		time.Sleep(500 * time.Millisecond)
		b.report(id, musterv1.Target_SUCCEEDED)
		time.Sleep(10 * time.Second)
		if got := r.command(id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
		if n := len(r.c.fresh.byKey); n > 0 {
			t.Errorf("%d packs are kept", n)
		}
	})
}

// An agent whose place becomes free while the watch is cut gets its next command.
func TestCutWatchLeavesNoAgentWaiting(t *testing.T) {
	scannedTest(t, 1, func(t *testing.T, r *rig, s *scanned) {
		a := r.peer("a").join()
		defer a.leave()
		first := r.submit(to("a")).Id
		r.submit(to("a"))
		s.CutWatches()
		synctest.Wait()
		a.report(first, musterv1.Target_SUCCEEDED)
		time.Sleep(2 * time.Second)
		a.wantGot(2)
	})
}

// A command with a row that cannot be read is in the way of no other.
func TestReloadPassesABadPack(t *testing.T) {
	scannedTest(t, 0, func(t *testing.T, r *rig, s *scanned) {
		a := r.peer("a").join()
		defer a.leave()
		bad, good := r.submit(to("a")).Id, r.submit(to("a")).Id
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceHistory, Key: packKey(bad, 7), Value: []byte{0xff}}}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		a.report(good, musterv1.Target_SUCCEEDED)
		s.CutWatches()
		time.Sleep(10 * time.Second)
		if got := r.command(good); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
		if id := r.submit(to("a")).Id; id == "" {
			t.Error("no command is taken")
		}
	})
}

// Commands whose end no watch has brought count for retention.
func TestEndsMissedByTheWatchAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.KeepCommands = 2
		r.store = faulty.New(r.store, func(c faulty.Call) (f faulty.Fault) {
			if c.Method == faulty.Watch && c.Space == spaceHistory {
				f.Cut = 1
			}
			return f
		})
		r.start()
		a := r.peer("a").join()
		for range 10 {
			id := r.submit(to("a")).Id
			time.Sleep(time.Second)
			a.report(id, musterv1.Target_SUCCEEDED)
			time.Sleep(time.Second)
		}
		time.Sleep(2 * pruneEvery)
		if got := walk(t, r, &musterv1.ListCommandsRequest{}); len(got) != 2 {
			t.Errorf("%d commands are kept, want 2", len(got))
		}
		a.leave()
		r.stop()
		r.store.Close()
	})
}
