package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/storetest"
)

func openMem(t *testing.T, spaces ...store.SpaceDef) store.Store { return store.NewMem(spaces...) }

func TestMem(t *testing.T) {
	storetest.Run(t, openMem)
	t.Run("Follow", func(t *testing.T) { storetest.Follow(t, openMem) })
}

// TestMemInAnyOrder fills and empties more rows than a block has, in no order.
func TestMemInAnyOrder(t *testing.T) {
	const rows = 20_000
	s := store.NewMem(store.SpaceDef{Name: "s"})
	shuffled := func(kind store.Kind, want int) {
		ops := []store.Op{}
		for _, n := range rand.Perm(rows) {
			ops = append(ops, store.Op{Kind: kind, Space: "s", Key: fmt.Appendf(nil, "%06d", n)})
			if len(ops) == store.MaxOps {
				if _, err := s.Commit(t.Context(), store.Batch{Ops: ops}); err != nil {
					t.Fatal(err)
				}
				ops = ops[:0]
			}
		}
		p, err := s.Scan(t.Context(), "s", store.Range{Limit: rows + 1})
		if err != nil || len(p.Items) != want {
			t.Fatalf("%d rows, want %d; %v", len(p.Items), want, err)
		}
		for i, kv := range p.Items {
			if string(kv.Key) != fmt.Sprintf("%06d", i) {
				t.Fatalf("row %d is %q", i, kv.Key)
			}
		}
	}
	shuffled(store.Put, rows)
	shuffled(store.PutIfAbsent, rows)
	shuffled(store.Delete, 0)
	shuffled(store.Put, rows)
}

func BenchmarkMemPut(b *testing.B) {
	s := store.NewMem(store.SpaceDef{Name: "s", Watched: true})
	value := make([]byte, 300)
	for b.Loop() {
		op := store.Op{Space: "s", Key: fmt.Appendf(nil, "%08x", rand.Uint32()%100_000), Value: value}
		if _, err := s.Commit(b.Context(), store.Batch{Ops: []store.Op{op}}); err != nil {
			b.Fatal(err)
		}
	}
}
