package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/coordinator/store"
)

// Follow checks that the rules for callers are enough: a store that refuses,
// forgets its answers and cuts its watches still loses nothing, does nothing
// twice and leaves no follower behind.
func Follow(t *testing.T, open Opener) {
	s := open.fresh(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	f := follower{s: s, rows: map[string]store.KV{}}
	following, writing := errgroup.Group{}, errgroup.Group{}
	following.Go(func() error { return f.follow(ctx, "end") })
	const writers, rounds = 4, 60
	for w := range writers {
		writing.Go(func() error { return write(ctx, s, w, rounds) })
	}
	must(t, writing.Wait())
	must(t, settle(ctx, s, func() []store.Op { return []store.Op{put(things, "end", "1")} }, "end", "1"))
	must(t, following.Wait())

	for w := range writers {
		if got := string(f.rows[fmt.Sprint("w/", w)].Value); got != fmt.Sprint(rounds-1) {
			t.Errorf("writer %d: the follower is at %q", w, got)
		}
		if _, ok := f.rows[fmt.Sprint("d/", w)]; ok {
			t.Errorf("writer %d: the follower has missed a delete", w)
		}
	}
	var rows []store.KV
	must(t, again(ctx, func() error {
		p, err := s.Scan(ctx, things, store.Range{})
		rows = p.Items
		return err
	}))
	if len(rows) != len(f.rows) {
		t.Fatalf("the follower has %d rows of %d", len(f.rows), len(rows))
	}
	for _, kv := range rows {
		if got := f.rows[string(kv.Key)]; got.Rev != kv.Rev || !bytes.Equal(got.Value, kv.Value) {
			t.Errorf("the follower has %q at %d, the store %q at %d", got.Value, got.Rev, kv.Value, kv.Rev)
		}
	}
	// One first write for each key, whoever was told what.
	for i := range rounds {
		if kv := f.rows[fmt.Sprint("first/", i)]; kv.Rev == 0 {
			t.Errorf("round %d has no first write", i)
		}
	}
}

func write(ctx context.Context, s store.Store, w, rounds int) error {
	own, gone := fmt.Sprint("w/", w), fmt.Sprint("d/", w)
	for i := range rounds {
		ops := func() []store.Op {
			return []store.Op{
				put(things, own, fmt.Sprint(i)),
				putIfAbsent(things, fmt.Sprint("first/", i), fmt.Sprint(w)),
				put(things, gone, "x"),
			}
		}
		if err := settle(ctx, s, ops, own, fmt.Sprint(i)); err != nil {
			return err
		}
		if err := settle(ctx, s, func() []store.Op { return []store.Op{del(things, gone)} }, gone, ""); err != nil {
			return err
		}
	}
	return nil
}

// settle commits until it is known that key has the value: after ErrUnknown it
// reads and decides.
func settle(ctx context.Context, s store.Store, ops func() []store.Op, key, value string) error {
	for {
		err := again(ctx, func() error {
			_, err := s.Commit(ctx, store.Batch{Ops: ops()})
			return err
		})
		if !errors.Is(err, store.ErrUnknown) {
			return err
		}
		var kvs []store.KV
		err = again(ctx, func() (err error) {
			kvs, err = s.Get(ctx, things, []byte(key))
			return err
		})
		if err != nil || string(kvs[0].Value) == value {
			return err
		}
	}
}

// follower keeps a copy of a space up to date.
type follower struct {
	s    store.Store
	rows map[string]store.KV
}

// follow returns when the copy has the key end.
func (f *follower) follow(ctx context.Context, end string) error {
	for {
		rev, err := f.scan(ctx)
		if err != nil {
			return err
		}
		ch, err := f.s.Watch(ctx, things, nil, rev)
		if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrCompacted) {
			continue
		}
		if err != nil {
			return err
		}
		for {
			if _, done := f.rows[end]; done {
				return nil
			}
			events, open := <-ch
			if !open {
				break
			}
			for _, e := range events {
				f.apply(e)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (f *follower) apply(e store.Event) {
	key := string(e.Key)
	switch {
	case e.Rev <= f.rows[key].Rev: // a later page has shown a newer row
	case e.Deleted:
		delete(f.rows, key)
	default:
		f.rows[key] = e.KV
	}
}

// scan reads the copy anew; the watch goes on from the first page.
func (f *follower) scan(ctx context.Context) (store.Rev, error) {
	clear(f.rows)
	var first store.Rev
	for r := (store.Range{Limit: 10}); ; {
		var p store.Page
		err := again(ctx, func() (err error) {
			p, err = f.s.Scan(ctx, things, r)
			return err
		})
		if err != nil {
			return 0, err
		}
		if r.After == nil {
			first = p.Rev
		}
		for _, kv := range p.Items {
			f.rows[string(kv.Key)] = kv
		}
		if !p.More {
			return first, nil
		}
		r.After = p.Items[len(p.Items)-1].Key
	}
}
