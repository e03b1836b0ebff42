package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/coordinator/store"
)

func watchKeepsCommitsTogether(t *testing.T, s store.Store) {
	all, some := watch(t, s, things, "", 0), watch(t, s, things, "b", 0)
	r := commit(t, s,
		put(others, "b", "0"), put(things, "c", "3"), put(things, "b/2", "2"), put(bulk, "b", "0"),
		put(things, "b/1", "1"), put(things, "a", "0"))
	commit(t, s, put(others, "b", "1"))
	commit(t, s, put(things, "z", "4"))
	commit(t, s, put(things, "b", "5"))
	for ch, want := range map[<-chan []store.Event][]string{
		all:  {"a=0 b/1=1 b/2=2 c=3", "z=4", "b=5"},
		some: {"b/1=1 b/2=2", "b=5"},
	} {
		for i, w := range want {
			events := next(t, ch)
			if got := show(events); got != w {
				t.Fatalf("commit %d: got %q, want %q", i, got, w)
			}
			if i == 0 && events[0].Rev != r.Rev {
				t.Fatalf("event at %d of commit %d", events[0].Rev, r.Rev)
			}
		}
	}
}

func watchKeepsCommitOrder(t *testing.T, s store.Store) {
	const writers, rounds = 8, 50
	ch := watch(t, s, things, "", 0)
	g, ctx := errgroup.WithContext(t.Context())
	for range writers {
		g.Go(func() error {
			for range rounds {
				if err := increment(ctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var last store.Rev
	for n := 1; n <= writers*rounds; n++ {
		events := next(t, ch)
		if got, want := show(events), fmt.Sprintf("count=%d", n); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		if events[0].Rev <= last {
			t.Fatalf("revision %d after %d", events[0].Rev, last)
		}
		last = events[0].Rev
	}
	must(t, g.Wait())
}

func watchTellsDeletes(t *testing.T, s store.Store) {
	commit(t, s, put(things, "a", "1"))
	ch := watch(t, s, things, "", get(t, s, things, "a").Rev)
	commit(t, s, del(things, "nothing"))
	r := commit(t, s, del(things, "a"), del(things, "nothing"), put(things, "b", "2"))
	events := next(t, ch)
	if got := show(events); got != "-a b=2" {
		t.Fatalf("got %q", got)
	}
	if events[0].Rev != r.Rev || events[0].Value != nil {
		t.Fatalf("the delete of commit %d: %+v", r.Rev, events[0])
	}
}

func watchGoesBack(t *testing.T, s store.Store) {
	var revs []store.Rev
	for i := range 5 {
		revs = append(revs, commit(t, s, put(things, "k", fmt.Sprint(i))).Rev)
		commit(t, s, put(bulk, "k", "x"))
	}
	for i, rev := range revs {
		ch := watch(t, s, things, "", rev)
		for j := i + 1; j < 5; j++ {
			if got, want := show(next(t, ch)), fmt.Sprintf("k=%d", j); got != want {
				t.Fatalf("after revision %d: got %q, want %q", rev, got, want)
			}
		}
		select {
		case events := <-ch:
			t.Fatalf("after revision %d: also %q", rev, show(events))
		default:
		}
	}
}

func watchFromPageMissesNothing(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	for range 4 {
		g.Go(func() error {
			for {
				if err := increment(ctx, s); err != nil {
					return err
				}
			}
		})
	}
	for range 40 {
		p := scan(t, s, things, store.Range{})
		n := 0
		if len(p.Items) > 0 {
			fmt.Sscan(string(p.Items[0].Value), &n)
		}
		wctx, stop := context.WithCancel(t.Context())
		ch, err := s.Watch(wctx, things, nil, p.Rev)
		must(t, err)
		for range 3 {
			n++
			if got, want := show(next(t, ch)), fmt.Sprintf("count=%d", n); got != want {
				t.Fatalf("page of revision %d: got %q, want %q", p.Rev, got, want)
			}
		}
		stop()
	}
	cancel()
	wantErr(t, g.Wait(), context.Canceled)
}

func watchRefusesWhatItCannotKeep(t *testing.T, s store.Store) {
	_, err := s.Watch(t.Context(), bulk, nil, 0)
	wantErr(t, err, store.ErrInvalid)
	_, err = s.Watch(t.Context(), "nowhere", nil, 0)
	wantErr(t, err, store.ErrInvalid)
	r := commit(t, s, put(things, "k", "1"))
	_, err = s.Watch(t.Context(), things, nil, r.Rev+1)
	wantErr(t, err, store.ErrCompacted)
}

func slowWatcherIsCut(t *testing.T, s store.Store) {
	start := commit(t, s, put(others, "k", "1"), put(things, "k", "1")).Rev
	slow := watch(t, s, things, "", start)
	value := strings.Repeat("v", store.MaxValue-100)
	mebibyte := func() {
		commit(t, s, put(things, "1", value), put(things, "2", value), put(things, "3", value), put(things, "4", value))
	}
	for n := 1; ; n++ {
		mebibyte()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Watch(ctx, things, nil, start)
		cancel()
		if errors.Is(err, store.ErrCompacted) {
			for range n { // what is on its way to the reader is not lost at once
				mebibyte()
			}
			break
		}
		must(t, err)
		if n == 200 {
			t.Fatal("200 MiB of changes are held")
		}
	}
	last := start
	for _, events := range ended(t, slow) {
		if events[0].Rev <= last {
			t.Fatalf("revision %d after %d", events[0].Rev, last)
		}
		last = events[0].Rev
	}
	p := scan(t, s, things, store.Range{Limit: 1})
	if last >= p.Rev {
		t.Fatal("the slow watcher has seen it all")
	}
	ch := watch(t, s, things, "", p.Rev)
	commit(t, s, put(things, "k", "2"))
	if got := show(next(t, ch)); got != "k=2" {
		t.Fatalf("watched %q", got)
	}
	// A quiet space is not let go because of a busy one.
	watch(t, s, others, "", start)
}

func watchEndsWithContext(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	idle, err := s.Watch(ctx, things, nil, 0)
	must(t, err)
	full, err := s.Watch(ctx, things, nil, 0)
	must(t, err)
	for i := range 100 { // nobody reads
		commit(t, s, put(things, "k", fmt.Sprint(i)))
	}
	cancel()
	ended(t, idle)
	ended(t, full)
}

func closeEndsAll(t *testing.T, s store.Store) {
	ch := watch(t, s, things, "", 0)
	g, ctx := errgroup.WithContext(t.Context())
	started := make(chan struct{}, 4)
	for w := range 4 {
		g.Go(func() error {
			for i := 0; ; i++ {
				if _, err := s.Commit(ctx, store.Batch{Ops: []store.Op{put(things, fmt.Sprint(w), fmt.Sprint(i))}}); err != nil {
					return err
				}
				if i == 3 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		select {
		case <-started:
		case <-time.After(patience):
			t.Fatal("no commits")
		}
	}
	must(t, s.Close())
	wantErr(t, g.Wait(), store.ErrUnavailable)
	ended(t, ch)
	_, err := s.Commit(t.Context(), store.Batch{Ops: []store.Op{put(things, "k", "1")}})
	wantErr(t, err, store.ErrUnavailable)
	_, err = s.Get(t.Context(), things, []byte("k"))
	wantErr(t, err, store.ErrUnavailable)
	_, err = s.Scan(t.Context(), things, store.Range{})
	wantErr(t, err, store.ErrUnavailable)
	_, err = s.Watch(t.Context(), things, nil, 0)
	wantErr(t, err, store.ErrUnavailable)
	wantErr(t, s.DropBefore(t.Context(), things, []byte("k")), store.ErrUnavailable)
	must(t, s.Close())
}
