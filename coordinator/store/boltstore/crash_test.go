package boltstore_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// TestAcknowledgedRowsOutlastKill kills a process that commits, 20 times, and
// looks for every row that it has said was durable.
func TestAcknowledgedRowsOutlastKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	acked := map[string]string{}
	for round := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := child(ctx, "commit", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		killAfter := 1 + rand.IntN(60) // acknowledged rows, and some time
		n := 0
		for lines := bufio.NewScanner(out); lines.Scan(); n++ {
			key, value, ok := strings.Cut(lines.Text(), "=")
			if !ok {
				t.Fatalf("round %d: the child says %q", round, lines.Text())
			}
			acked[key] = value
			if n == killAfter {
				time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
			}
		}
		_ = cmd.Wait()
		cancel()
		if n <= killAfter {
			t.Fatalf("round %d: the child ended by itself after %d rows", round, n)
		}

		s, err := boltstore.Open(path, boltstore.Options{}, watched, plain)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		rows, twins := rowsIn(t, s, watched), rowsIn(t, s, plain)
		for key, value := range acked {
			if rows[key] != value {
				t.Fatalf("round %d: row %q is %q, acknowledged was %q", round, key, rows[key], value)
			}
		}
		for key := range rows {
			if _, ok := twins[key]; !ok {
				t.Fatalf("round %d: of the commit of row %q a half is there", round, key)
			}
		}
		s.Close()
	}
	wantSound(t, path)
	t.Logf("%d rows acknowledged", len(acked))
}

// commitUntilKilled prints each row once it is durable.
func commitUntilKilled(path string) int {
	s, err := boltstore.Open(path, boltstore.Options{}, watched, plain)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var out sync.Mutex
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%d/%d/%d", os.Getpid(), w, i)
				value := strings.Repeat("v", rand.IntN(2000))
				_, err := s.Commit(context.Background(), store.Batch{Ops: []store.Op{
					put(watched, key, value), put(plain, key, value),
				}})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				out.Lock()
				fmt.Printf("%s=%s\n", key, value)
				out.Unlock()
			}
		})
	}
	all.Wait()
	return 1
}
