// Package storetest is the contract of store.Store as tests. Every engine, and
// every wrapper of one, passes Run and Follow.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator/store"
)

// The spaces that the checks use.
const (
	things store.Space = "things" // watched
	others store.Space = "others" // watched
	bulk   store.Space = "bulk"   // not watched
)

// Opener makes a fresh, empty store with the spaces. Run closes it.
type Opener func(t *testing.T, spaces ...store.SpaceDef) store.Store

func (open Opener) fresh(t *testing.T) store.Store {
	t.Helper()
	s := open(t,
		store.SpaceDef{Name: things, Watched: true},
		store.SpaceDef{Name: others, Watched: true},
		store.SpaceDef{Name: bulk})
	t.Cleanup(func() { s.Close() })
	return s
}

// Run checks the stores that open makes.
func Run(t *testing.T, open Opener) {
	for _, c := range []struct {
		name  string
		check func(*testing.T, store.Store)
	}{
		{"CommitIsAllOrNothing", commitIsAllOrNothing},
		{"FirstWriteWins", firstWriteWins},
		{"ConditionsHold", conditionsHold},
		{"RevsNameVersions", revsNameVersions},
		{"ConcurrentCommitsLoseNothing", concurrentCommitsLoseNothing},
		{"SlicesAreCopies", slicesAreCopies},
		{"LimitsHold", limitsHold},
		{"EndedContextAppliesNothing", endedContextAppliesNothing},
		{"GetAnswersEachKey", getAnswersEachKey},
		{"ScanKeepsOrder", scanKeepsOrder},
		{"ScanPagesBothWays", scanPagesBothWays},
		{"BigPageEndsEarly", bigPageEndsEarly},
		{"DropBeforeKeepsTheRest", dropBeforeKeepsTheRest},
		{"WatchKeepsCommitsTogether", watchKeepsCommitsTogether},
		{"WatchKeepsCommitOrder", watchKeepsCommitOrder},
		{"WatchTellsDeletes", watchTellsDeletes},
		{"WatchGoesBack", watchGoesBack},
		{"WatchFromPageMissesNothing", watchFromPageMissesNothing},
		{"WatchRefusesWhatItCannotKeep", watchRefusesWhatItCannotKeep},
		{"SlowWatcherIsCut", slowWatcherIsCut},
		{"WatchEndsWithContext", watchEndsWithContext},
		{"CloseEndsAll", closeEndsAll},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, open.fresh(t)) })
	}
	t.Run("BehavesLikeTheModel", func(t *testing.T) { behavesLikeTheModel(t, open) })
}

func put(s store.Space, key, value string) store.Op {
	return store.Op{Kind: store.Put, Space: s, Key: []byte(key), Value: []byte(value)}
}

func putIfAbsent(s store.Space, key, value string) store.Op {
	return store.Op{Kind: store.PutIfAbsent, Space: s, Key: []byte(key), Value: []byte(value)}
}

func del(s store.Space, key string) store.Op {
	return store.Op{Kind: store.Delete, Space: s, Key: []byte(key)}
}

func on(c store.Cond, o store.Op) store.Op {
	o.If = c
	return o
}

func commit(t *testing.T, s store.Store, ops ...store.Op) store.Result {
	t.Helper()
	r, err := s.Commit(t.Context(), store.Batch{Ops: ops})
	must(t, err)
	return r
}

func get(t *testing.T, s store.Store, space store.Space, key string) store.KV {
	t.Helper()
	kvs, err := s.Get(t.Context(), space, []byte(key))
	must(t, err)
	if len(kvs) != 1 {
		t.Fatalf("Get of one key returned %d rows", len(kvs))
	}
	return kvs[0]
}

// wantRow checks a row's value; "" is an absent row.
func wantRow(t *testing.T, s store.Store, space store.Space, key, value string) {
	t.Helper()
	kv := get(t, s, space, key)
	if string(kv.Value) != value || (value == "") != (kv.Rev == 0) || string(kv.Key) != key {
		t.Fatalf("key %q: got %q at revision %d, want %q", key, kv.Value, kv.Rev, value)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func scan(t *testing.T, s store.Store, space store.Space, r store.Range) store.Page {
	t.Helper()
	p, err := s.Scan(t.Context(), space, r)
	must(t, err)
	return p
}

func keysOf(p store.Page) []string {
	keys := []string{}
	for _, kv := range p.Items {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func watch(t *testing.T, s store.Store, space store.Space, prefix string, after store.Rev) <-chan []store.Event {
	t.Helper()
	ch, err := s.Watch(t.Context(), space, []byte(prefix), after)
	must(t, err)
	return ch
}

const patience = 20 * time.Second

// next returns the next commit's events, which must be there soon.
func next(t *testing.T, ch <-chan []store.Event) []store.Event {
	t.Helper()
	select {
	case events, ok := <-ch:
		if !ok {
			t.Fatal("the watch ended")
		}
		return events
	case <-time.After(patience):
		t.Fatal("no events")
	}
	return nil
}

// ended drains ch until it is closed and returns what was in it.
func ended(t *testing.T, ch <-chan []store.Event) [][]store.Event {
	t.Helper()
	var all [][]store.Event
	for deadline := time.After(patience); ; {
		select {
		case events, ok := <-ch:
			if !ok {
				return all
			}
			all = append(all, events)
		case <-deadline:
			t.Fatal("the watch did not end")
		}
	}
}

// show writes events as "key=value key=value -key".
func show(events []store.Event) string {
	var b bytes.Buffer
	for i, e := range events {
		if i > 0 {
			b.WriteByte(' ')
		}
		if e.Deleted {
			fmt.Fprintf(&b, "-%s", e.Key)
		} else {
			fmt.Fprintf(&b, "%s=%s", e.Key, e.Value)
		}
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// again calls fn until it is not refused.
func again(ctx context.Context, fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
	}
}
