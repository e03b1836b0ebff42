package faulty_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	"github.com/musterhq/muster/coordinator/store/storetest"
)

var space = store.SpaceDef{Name: "s", Watched: true}

func batch(key, value string) store.Batch {
	return store.Batch{Ops: []store.Op{{Space: "s", Key: []byte(key), Value: []byte(value)}}}
}

func TestNoFaultsKeepTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, spaces ...store.SpaceDef) store.Store {
		return faulty.New(store.NewMem(spaces...), nil)
	})
}

func TestLatenessKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, spaces ...store.SpaceDef) store.Store {
		return faulty.New(store.NewMem(spaces...), faulty.Random(1, faulty.Odds{Late: 0.05, Delay: time.Millisecond}))
	})
}

func TestCallersCanLiveWithFaults(t *testing.T) {
	for seed := range uint64(10) {
		storetest.Follow(t, func(t *testing.T, spaces ...store.SpaceDef) store.Store {
			return faulty.New(store.NewMem(spaces...), faulty.Random(seed, faulty.Odds{
				Late: 0.1, Delay: time.Millisecond, Refuse: 0.2, Forget: 0.2, Cut: 0.8,
			}))
		})
	}
}

func TestRefusedCommitIsNotApplied(t *testing.T) {
	full := true
	s := faulty.New(store.NewMem(space), func(c faulty.Call) (f faulty.Fault) {
		if full && c.Method == faulty.Commit {
			f.Refuse = syscall.ENOSPC
		}
		return f
	})
	defer s.Close()
	_, err := s.Commit(t.Context(), batch("k", "1"))
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got error %v", err)
	}
	if kvs, err := s.Get(t.Context(), "s", []byte("k")); err != nil || kvs[0].Rev != 0 {
		t.Fatalf("got %v, %v", kvs, err)
	}
	full = false
	if _, err := s.Commit(t.Context(), batch("k", "1")); err != nil {
		t.Fatal(err)
	}
}

func TestForgottenCommitIsApplied(t *testing.T) {
	s := faulty.New(store.NewMem(space), func(faulty.Call) faulty.Fault { return faulty.Fault{Forget: true} })
	defer s.Close()
	if _, err := s.Commit(t.Context(), batch("k", "1")); !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("got error %v", err)
	}
	if kvs, err := s.Get(t.Context(), "s", []byte("k")); err != nil || string(kvs[0].Value) != "1" {
		t.Fatalf("got %v, %v", kvs, err)
	}
}

func TestLateCallEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := faulty.New(store.NewMem(space), func(faulty.Call) faulty.Fault { return faulty.Fault{Delay: time.Hour} })
		defer s.Close()
		start := time.Now()
		if _, err := s.Commit(t.Context(), batch("k", "1")); err != nil || time.Since(start) != time.Hour {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestWatchesAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := 2
		s := faulty.New(store.NewMem(space), func(faulty.Call) faulty.Fault { return faulty.Fault{Cut: cut} })
		defer s.Close()
		count := func(ch <-chan []store.Event) (n int) {
			for range ch {
				n++
			}
			return n
		}
		short, err := s.Watch(t.Context(), "s", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		cut = 0
		long, err := s.Watch(t.Context(), "s", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{"1", "2", "3"} {
			if _, err := s.Commit(t.Context(), batch("k", v)); err != nil {
				t.Fatal(err)
			}
		}
		if n := count(short); n != 2 {
			t.Fatalf("cut after %d commits, want 2", n)
		}
		for range 3 {
			<-long
		}
		s.CutWatches()
		if n := count(long); n != 0 {
			t.Fatalf("%d commits after the cut", n)
		}
	})
}
