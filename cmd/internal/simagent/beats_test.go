package simagent

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// Two thousand agents beat for ten minutes, and nothing is written: no commit
// reaches the store, and the transaction id of its file stands still.
func TestBeatsOf2000AgentsCostNoCommit(t *testing.T) {
	const agents = 2000
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, dir: t.TempDir(), cfg: coordinator.Config{Log: warnings(t)}}
		// The runtime of Go 1.26 has crashed once, in a bubble with the race
		// detector, on three times as many beats.
		r.cfg.HeartbeatInterval = 30 * time.Second
		path := filepath.Join(r.dir, "muster.db")
		db, err := boltstore.Open(path, boltstore.Options{}, coordinator.Spaces...)
		if err != nil {
			t.Fatal(err)
		}
		r.store = newWitness(db)
		r.start()
		t.Cleanup(func() { r.Stop(); db.Close() })
		f, _ := r.fleet(Config{Agents: agents})
		waitRegistered(t, f)
		time.Sleep(time.Second) // what the registrations write is written
		synctest.Wait()
		commits, id, beats := r.store.commits.Load(), transaction(t, path), f.Report().Beats
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := f.Report().Beats - beats; n < agents*18 {
			t.Errorf("%d beats in ten minutes", n)
		}
		if n := r.store.commits.Load() - commits; commits == 0 || n != 0 {
			t.Errorf("%d commits by beats", n)
		}
		if now := transaction(t, path); id == 0 || now != id {
			t.Errorf("transaction %d, then %d", id, now)
		}
	})
}

// transaction is the id of the last transaction in a bbolt file: the higher one
// of its two meta pages.
func transaction(t *testing.T, path string) (id uint64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := range int64(2) {
		meta := make([]byte, 16+64)
		if _, err := f.ReadAt(meta, page*int64(os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		id = max(id, binary.NativeEndian.Uint64(meta[16+48:]))
	}
	return id
}
