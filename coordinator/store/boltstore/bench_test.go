package boltstore_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

func openBench(b *testing.B) *boltstore.Store {
	s, err := boltstore.Open(filepath.Join(b.TempDir(), "db"), boltstore.Options{}, watched, plain)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

var value300 = make([]byte, 300)

// BenchmarkCommitAlone is one caller with one row at a time.
func BenchmarkCommitAlone(b *testing.B) {
	s := openBench(b)
	n := 0
	for b.Loop() {
		n++
		op := store.Op{Space: watched.Name, Key: fmt.Appendf(nil, "%012d", n), Value: value300}
		if _, err := s.Commit(b.Context(), store.Batch{Ops: []store.Op{op}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkCommitTogether is 64 callers with one row at a time.
func BenchmarkCommitTogether(b *testing.B) {
	s := openBench(b)
	var n atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			op := store.Op{Space: watched.Name, Key: fmt.Appendf(nil, "%012d", n.Add(1)), Value: value300}
			if _, err := s.Commit(b.Context(), store.Batch{Ops: []store.Op{op}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkBatches is batches of 1,000 rows, two callers at a time.
func BenchmarkBatches(b *testing.B) {
	for name, key := range map[string]func(n int) []byte{
		"ByArrival": func(n int) []byte { return fmt.Appendf(nil, "%012d", n) },
		"ByAgent":   func(n int) []byte { return fmt.Appendf(nil, "%08x/%d", rand.Uint32(), n) },
	} {
		for _, kind := range []store.Kind{store.Put, store.PutIfAbsent} {
			for _, space := range []store.SpaceDef{plain, watched} {
				b.Run(fmt.Sprintf("%s/%s/%s", name, [...]string{"Put", "PutIfAbsent"}[kind], space.Name), func(b *testing.B) {
					s := openBench(b)
					var n atomic.Int64
					b.SetParallelism(1)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							ops := make([]store.Op, store.MaxOps)
							for i := range ops {
								ops[i] = store.Op{Kind: kind, Space: space.Name, Key: key(int(n.Add(1))), Value: value300}
							}
							if _, err := s.Commit(b.Context(), store.Batch{Ops: ops}); err != nil {
								b.Fatal(err)
							}
						}
					})
					b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "rows/s")
				})
			}
		}
	}
}

// BenchmarkBboltItself is the limit: the same rows by arrival, straight into
// bbolt, one at a time and 1,000 at a time.
func BenchmarkBboltItself(b *testing.B) {
	for _, rows := range []int{1, 1000} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			db, err := bbolt.Open(filepath.Join(b.TempDir(), "db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			n := 0
			for b.Loop() {
				err := db.Update(func(tx *bbolt.Tx) error {
					bucket, err := tx.CreateBucketIfNotExists([]byte("rows"))
					for range rows {
						if err == nil {
							n++
							err = bucket.Put(fmt.Appendf(nil, "%012d", n), value300)
						}
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
