package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/coordinator/store"
)

func commitIsAllOrNothing(t *testing.T, s store.Store) {
	commit(t, s, put(things, "a", "1"), put(bulk, "a", "1"))
	_, err := s.Commit(t.Context(), store.Batch{Ops: []store.Op{
		put(bulk, "b", "2"), put(things, "b", "2"), del(bulk, "a"), putIfAbsent(things, "c", "2"),
		on(store.Absent(), put(things, "a", "2")),
	}})
	wantErr(t, err, store.ErrConflict)
	wantRow(t, s, things, "a", "1")
	wantRow(t, s, things, "b", "")
	wantRow(t, s, things, "c", "")
	wantRow(t, s, bulk, "a", "1")
	wantRow(t, s, bulk, "b", "")
	// The same key in two spaces is two keys, and the conflict has spoiled nothing.
	commit(t, s, put(things, "b", "3"), put(bulk, "b", "4"))
	wantRow(t, s, things, "b", "3")
	wantRow(t, s, bulk, "b", "4")
	if r := commit(t, s); r.Rev != 0 {
		t.Fatalf("an empty batch has revision %d", r.Rev)
	}
}

func firstWriteWins(t *testing.T, s store.Store) {
	commit(t, s, putIfAbsent(things, "m", "first"), put(bulk, "x", "first"))
	r := commit(t, s,
		putIfAbsent(things, "z", "second"), putIfAbsent(things, "m", "second"),
		put(things, "a", "second"), putIfAbsent(bulk, "x", "second"), putIfAbsent(things, "b", "second"))
	if !slices.Equal(r.Skipped, []int{1, 3}) {
		t.Fatalf("skipped ops %v, want 1 and 3", r.Skipped)
	}
	wantRow(t, s, things, "m", "first")
	wantRow(t, s, bulk, "x", "first")
	for _, key := range []string{"z", "a", "b"} {
		wantRow(t, s, things, key, "second")
	}
	if r := commit(t, s, putIfAbsent(things, "m", "third")); r.Rev != 0 || len(r.Skipped) != 1 {
		t.Fatalf("a batch that is skipped whole: %+v", r)
	}
}

func conditionsHold(t *testing.T, s store.Store) {
	refused := func(o store.Op) {
		t.Helper()
		_, err := s.Commit(t.Context(), store.Batch{Ops: []store.Op{o}})
		wantErr(t, err, store.ErrConflict)
	}
	refused(on(store.AtRev(1), put(things, "k", "x")))
	refused(on(store.AtRev(0), put(things, "k", "x"))) // rev 0 is no version
	commit(t, s, on(store.Absent(), put(things, "k", "1")))
	first := get(t, s, things, "k").Rev
	refused(on(store.Absent(), put(things, "k", "x")))
	commit(t, s, on(store.AtRev(first), put(things, "k", "2")))
	refused(on(store.AtRev(first), put(things, "k", "x")))
	refused(on(store.AtRev(first), del(things, "k")))
	refused(on(store.Absent(), del(things, "k")))
	wantRow(t, s, things, "k", "2")
	commit(t, s, on(store.AtRev(get(t, s, things, "k").Rev), del(things, "k")))
	wantRow(t, s, things, "k", "")
	commit(t, s, del(things, "k"))
	commit(t, s, on(store.Absent(), del(things, "k")))
	commit(t, s, on(store.Absent(), put(things, "k", "3")))
	if again := get(t, s, things, "k").Rev; again == first {
		t.Fatalf("a row made anew has the old revision %d", first)
	}
}

func revsNameVersions(t *testing.T, s store.Store) {
	var last store.Rev
	for i := range 5 {
		r := commit(t, s, put(things, "a", strconv.Itoa(i)), put(others, "b", "x"), put(bulk, fmt.Sprint(i), "y"))
		if r.Rev <= last {
			t.Fatalf("revision %d after %d", r.Rev, last)
		}
		last = r.Rev
		if a, b := get(t, s, things, "a").Rev, get(t, s, others, "b").Rev; a != last || b != last {
			t.Fatalf("rows at %d and %d, the commit at %d", a, b, last)
		}
	}
	if r := commit(t, s, put(bulk, "k", "1")); r.Rev != 0 {
		t.Fatalf("a commit of nothing watched has revision %d", r.Rev)
	}
	old := get(t, s, bulk, "k").Rev
	commit(t, s, put(bulk, "k", "1"))
	if now := get(t, s, bulk, "k").Rev; now == old || now == 0 {
		t.Fatalf("unwatched rows: version %d after %d", now, old)
	}
	if r := commit(t, s, del(things, "nothing")); r.Rev != 0 {
		t.Fatalf("deleting nothing has revision %d", r.Rev)
	}
	if r := commit(t, s, del(things, "a")); r.Rev <= last {
		t.Fatalf("a delete at revision %d after %d", r.Rev, last)
	}
}

func concurrentCommitsLoseNothing(t *testing.T, s store.Store) {
	const writers, rounds = 8, 25
	g, ctx := errgroup.WithContext(t.Context())
	for w := range writers {
		g.Go(func() error {
			for i := range rounds {
				own := put(bulk, fmt.Sprintf("%d/%d", w, i), "x")
				if err := increment(ctx, s, own); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
	wantRow(t, s, things, "count", strconv.Itoa(writers*rounds))
	if p := scan(t, s, bulk, store.Range{}); len(p.Items) != writers*rounds {
		t.Fatalf("%d rows, want %d", len(p.Items), writers*rounds)
	}
}

// increment adds one to the row "count" and commits more with it.
func increment(ctx context.Context, s store.Store, more ...store.Op) error {
	for {
		kvs, err := s.Get(ctx, things, []byte("count"))
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(string(kvs[0].Value))
		cond := store.Absent()
		if kvs[0].Rev != 0 {
			cond = store.AtRev(kvs[0].Rev)
		}
		ops := append([]store.Op{on(cond, put(things, "count", strconv.Itoa(n+1)))}, more...)
		if _, err = s.Commit(ctx, store.Batch{Ops: ops}); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func slicesAreCopies(t *testing.T, s store.Store) {
	scribble := func(bs ...[]byte) {
		for _, b := range bs {
			for i := range b {
				b[i] = '!'
			}
		}
	}
	ch := watch(t, s, things, "", 0)
	key, value := []byte("key"), []byte("value")
	commit(t, s, store.Op{Space: things, Key: key, Value: value}, store.Op{Space: bulk, Key: key, Value: value})
	scribble(key, value)
	for range 2 { // what the first round gets is scribbled on before the second
		for _, space := range []store.Space{things, bulk} {
			kv := get(t, s, space, "key")
			if string(kv.Value) != "value" {
				t.Fatalf("got %q", kv.Value)
			}
			scribble(kv.Key, kv.Value)
			p := scan(t, s, space, store.Range{})
			if len(p.Items) != 1 || string(p.Items[0].Key)+string(p.Items[0].Value) != "keyvalue" {
				t.Fatalf("got %v", p.Items)
			}
			_ = append(p.Items[0].Key, "!!!!"...)
			if string(p.Items[0].Value) != "value" {
				t.Fatal("appending to a key changes the value")
			}
			scribble(p.Items[0].Key, p.Items[0].Value)
		}
	}
	if got := show(next(t, ch)); got != "key=value" {
		t.Fatalf("watched %q", got)
	}
}

func limitsHold(t *testing.T, s store.Store) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := func(n, size int) (ops []store.Op) {
		for i := range n {
			ops = append(ops, put(bulk, fmt.Sprintf("%06d", i), long(size)))
		}
		return ops
	}
	for name, ops := range map[string][]store.Op{
		"no key":          {put(things, "", "x")},
		"long key":        {put(things, long(store.MaxKey+1), "x")},
		"long value":      {put(things, "k", long(store.MaxValue+1))},
		"many ops":        many(store.MaxOps+1, 1),
		"many bytes":      many(5, store.MaxValue),
		"one key twice":   {put(things, "k", "1"), put(things, "a", "1"), del(things, "k")},
		"unknown space":   {put("nowhere", "k", "1")},
		"unknown op":      {{Kind: 7, Space: things, Key: []byte("k")}},
		"bad among goods": {put(things, "k", "1"), put(things, "", "x")},
	} {
		_, err := s.Commit(t.Context(), store.Batch{Ops: ops})
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: got error %v, want %v", name, err, store.ErrInvalid)
		}
	}
	wantRow(t, s, things, "k", "")
	commit(t, s, put(things, long(store.MaxKey), long(store.MaxValue)))
	commit(t, s, many(store.MaxOps, 1000)...)
	wantRow(t, s, things, long(store.MaxKey), long(store.MaxValue))
	_, err := s.Get(t.Context(), "nowhere", []byte("k"))
	wantErr(t, err, store.ErrInvalid)
	_, err = s.Scan(t.Context(), "nowhere", store.Range{})
	wantErr(t, err, store.ErrInvalid)
	_, err = s.Scan(t.Context(), things, store.Range{Limit: -1})
	wantErr(t, err, store.ErrInvalid)
	wantErr(t, s.DropBefore(t.Context(), "nowhere", []byte("k")), store.ErrInvalid)
	commit(t, s, put(things, "empty", ""))
	if kv := get(t, s, things, "empty"); kv.Rev == 0 || len(kv.Value) != 0 {
		t.Fatalf("an empty value: %+v", kv)
	}
}

func endedContextAppliesNothing(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Commit(ctx, store.Batch{Ops: []store.Op{put(things, "k", "1")}})
	wantErr(t, err, context.Canceled)
	if errors.Is(err, store.ErrUnknown) {
		t.Fatalf("a ctx that had ended before: %v", err)
	}
	wantRow(t, s, things, "k", "")
	_, err = s.Get(ctx, things, []byte("k"))
	wantErr(t, err, context.Canceled)
	_, err = s.Scan(ctx, things, store.Range{})
	wantErr(t, err, context.Canceled)
	_, err = s.Watch(ctx, things, nil, 0)
	wantErr(t, err, context.Canceled)
	wantErr(t, s.DropBefore(ctx, things, []byte("k")), context.Canceled)

	// One that ends at any moment: the answer must not lie.
	for i := range 50 {
		key := fmt.Sprint("at/", i)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, err := s.Commit(ctx, store.Batch{Ops: []store.Op{put(things, key, "1")}})
		there := get(t, s, things, key).Rev != 0
		switch {
		case err == nil && !there:
			t.Fatal("committed and not there")
		case err != nil && !errors.Is(err, context.Canceled):
			t.Fatal(err)
		case err != nil && !errors.Is(err, store.ErrUnknown) && there:
			t.Fatalf("%v, and yet applied", err)
		}
		cancel()
	}
}
