package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
)

// gated is a store whose commits wait for the test.
type gated struct {
	store.Store
	began chan store.Batch
	goOn  chan error
}

func (g *gated) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	g.began <- b
	if err := <-g.goOn; err != nil {
		return store.Result{}, err
	}
	return g.Store.Commit(ctx, b)
}

// batching is a batcher on a gated store, and what it asked and told of writes.
type batching struct {
	*batcher
	*gated
	asked, told []string
}

func batchTest(t *testing.T, body func(t *testing.T, b *batching)) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{store.NewMem(Spaces...), make(chan store.Batch, 10), make(chan error)}
		b := &batching{batcher: newBatcher(&packer{store: g}, 100, 1<<20), gated: g}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()
		body(t, b)
		cancel()
		<-done
	})
}

// put queues a write of key.
func (b *batching) put(name, key string, blind bool) {
	b.must(&write{
		blind: blind,
		ops: func(context.Context) ([]store.Op, error) {
			b.asked = append(b.asked, name)
			return []store.Op{{Kind: store.PutIfAbsent, Space: spaceFleet, Key: []byte(key), Value: []byte(name)}}, nil
		},
		done: func(skipped []bool, err error) {
			switch {
			case err != nil:
				name += " failed"
			case skipped[0]:
				name += " skipped"
			}
			b.told = append(b.told, name)
		},
	})
	synctest.Wait()
}

// commits lets the commit under way end, and waits.
func (b *batching) commits(err error) {
	b.goOn <- err
	synctest.Wait()
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func TestBlindWritesAreMadeReadyDuringACommit(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		b.put("a", "a", false)
		b.put("b", "b", true)
		b.put("c", "c", true)
		want(t, "asked", b.asked, "a", "b", "c")
		if len(b.began) != 1 {
			t.Fatalf("%d commits at a time", len(b.began))
		}
		b.commits(nil)
		want(t, "told", b.told, "a")
		<-b.began
		if second := <-b.began; len(second.Ops) != 2 {
			t.Fatalf("%d ops in the second batch, want both that came meanwhile", len(second.Ops))
		}
		b.commits(nil)
		want(t, "told", b.told, "a", "b", "c")
	})
}

func TestWriteThatReadsWaitsForThoseBefore(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		b.put("a", "a", true)
		b.put("b", "b", false)
		b.put("c", "c", true)
		want(t, "asked", b.asked, "a")
		b.commits(nil)
		want(t, "asked", b.asked, "a", "b", "c")
		b.commits(nil)
		want(t, "told", b.told, "a", "b", "c")
	})
}

func TestKeyWaitsForTheBatchThatHasIt(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		b.put("first", "k", true)
		b.put("second", "k", true)
		b.commits(nil)
		b.commits(nil)
		want(t, "told", b.told, "first", "second skipped")
	})
}

func TestFailedBatchIsToldBeforeTheNext(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		b.put("a", "a", true)
		b.put("b", "b", true)
		b.goOn <- errors.New("disk full")
		b.commits(nil) // after a pause
		want(t, "told", b.told, "a failed", "b")
	})
}

// After a commit of many, those that come within a moment are one commit; nobody
// waits longer for the word that a write is stored, and a few hold up nobody.
func TestBatchGrowsInARush(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		b.put("first", "first", true)
		for i := range rush {
			b.put("many", fmt.Sprint(i), true)
		}
		<-b.began
		b.commits(nil)
		if many := <-b.began; len(many.Ops) != rush {
			t.Fatalf("%d ops in the second batch, want %d", len(many.Ops), rush)
		}
		b.commits(nil)
		if len(b.told) != 1+rush {
			t.Errorf("%d writes were told, want %d", len(b.told), 1+rush)
		}
		b.put("a", "a", true)
		time.Sleep(gather - 1)
		b.put("b", "b", true)
		if len(b.began) != 0 {
			t.Fatal("the batch did not wait for others")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if len(b.began) != 1 {
			t.Fatal("the batch waits on")
		}
		if both := <-b.began; len(both.Ops) != 2 {
			t.Errorf("%d ops in the third batch, want 2", len(both.Ops))
		}
		b.commits(nil)
		b.put("c", "c", true)
		if len(b.began) != 1 {
			t.Error("a single write waits after a few")
		}
		b.commits(nil)
	})
}

// A batch that others wait behind can take no more, and waits for nobody. The last
// one may.
func TestFullBatchDoesNotWaitForMore(t *testing.T) {
	batchTest(t, func(t *testing.T, b *batching) {
		start := time.Now()
		b.put("first", "first", true)
		for n := range 3 * store.MaxOps {
			b.put("rush", fmt.Sprint(n), true)
		}
		for range 4 {
			b.commits(nil)
		}
		if d := time.Since(start); len(b.told) != 3*store.MaxOps+1 || d > gather {
			t.Errorf("%d writes are told after %v", len(b.told), d)
		}
	})
}
