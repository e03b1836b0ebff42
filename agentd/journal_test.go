package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// openJournal opens the journal in dir and returns what it held.
func openJournal(t testing.TB, dir string, known bool) (*journal, []record, damage) {
	t.Helper()
	j := newJournal(dir, 100, testLog(t), newMetrics(nil))
	var rs []record
	what, err := j.open(known, func(r record) {
		if r.Kind != kindHeader && r.Kind != kindForgotten {
			rs = append(rs, r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	return j, rs, what
}

// put appends records and waits until they are on disk.
func put(t testing.TB, j *journal, rs ...record) {
	t.Helper()
	for _, r := range rs {
		j.append(r, func(err error) {
			if err != nil {
				t.Errorf("%s %s: %v", r.Kind, r.ID, err)
			}
		})
	}
	j.commit()
}

// story is what becomes of one command, up to the given kind.
func story(id string, upTo kind) (rs []record) {
	for _, k := range []kind{kindReceived, kindStarted, kindGroup, kindEnded, kindSettled} {
		rs = append(rs, record{Kind: k, ID: id, Command: bytes.Repeat([]byte("c"), 200)})
		if k == upTo {
			break
		}
	}
	return rs
}

func kinds(rs []record) string {
	var s []string
	for _, r := range rs {
		s = append(s, r.ID+":"+string(r.Kind))
	}
	return strings.Join(s, " ")
}

func TestJournalKeepsItsRecords(t *testing.T) {
	dir := t.TempDir()
	j, rs, what := openJournal(t, dir, false)
	if len(rs) != 0 || what != "" {
		t.Fatalf("a new journal has %v, %q", rs, what)
	}
	put(t, j, story("a", kindEnded)...)
	put(t, j, story("b", kindStarted)...)
	put(t, j, story("c", kindSettled)...)
	pos := j.position()
	j.close()

	j, rs, what = openJournal(t, dir, true)
	if what != "" {
		t.Errorf("damage: %s", what)
	}
	want := kinds(slices.Concat(story("a", kindEnded), story("b", kindStarted), story("c", kindSettled)))
	if kinds(rs) != want {
		t.Errorf("got  %s\nwant %s", kinds(rs), want)
	}
	if got := j.position(); got.Epoch != pos.Epoch || got.Seq != pos.Seq || pos.Seq != 11 {
		t.Errorf("position %v, was %v", got, pos)
	}
	if settled, _ := j.forgot("c"); !settled {
		t.Error("c is not known to be settled")
	}
}

func TestJournalRewrittenKeepsWhatIsNeeded(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := openJournal(t, dir, false)
	put(t, j, story("ended", kindEnded)...)
	put(t, j, story("running", kindGroup)...)
	for i := range 150 {
		put(t, j, story(fmt.Sprintf("s%03d", i), kindSettled)...)
	}
	put(t, j, story("waiting", kindReceived)...)
	before, pos := j.size, j.position()
	if err := j.rewrite(); err != nil {
		t.Fatal(err)
	}
	if j.size > before/10 {
		t.Errorf("%d bytes became %d", before, j.size)
	}
	put(t, j, record{Kind: kindStarted, ID: "waiting"})
	j.close()

	j, rs, what := openJournal(t, dir, true)
	if what != "" {
		t.Errorf("damage: %s", what)
	}
	if got, want := kinds(rs), "ended:ended running:received running:started running:group waiting:received waiting:started"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := j.position(); got.Epoch != pos.Epoch || got.Seq != pos.Seq+1 {
		t.Errorf("position %v, was %v", got, pos)
	}
	// The window of the test holds 100: the older ones are below the floor.
	if settled, old := j.forgot("s149"); !settled || old {
		t.Error("s149 is forgotten")
	}
	if settled, old := j.forgot("s010"); settled || !old {
		t.Error("s010 is not below the floor")
	}
}

func TestJournalGrownIsRewritten(t *testing.T) {
	j, _, _ := openJournal(t, t.TempDir(), false)
	big := bytes.Repeat([]byte("x"), 200<<10)
	for i := range 40 {
		put(t, j, record{Kind: kindReceived, ID: fmt.Sprint(i), Command: big}, record{Kind: kindEnded, ID: fmt.Sprint(i)}, record{Kind: kindSettled, ID: fmt.Sprint(i)})
	}
	if j.size > rewriteAt+1<<20 {
		t.Errorf("the file has %d bytes", j.size)
	}
}

func TestJournalGroupsCommits(t *testing.T) {
	j, _, _ := openJournal(t, t.TempDir(), false)
	var syncs atomic.Int32
	j.faults.sync = func(f *os.File) error { syncs.Add(1); return f.Sync() }
	var order []int
	for i := range 100 {
		j.append(record{Kind: kindReceived, ID: fmt.Sprint(i)}, func(error) { order = append(order, i) })
	}
	j.commit()
	if syncs.Load() != 1 || len(order) != 100 || !slices.IsSorted(order) {
		t.Errorf("%d fsyncs, order %v", syncs.Load(), order)
	}
	j.appendLazily(record{Kind: kindGroup, ID: "1"}, nil)
	j.commit()
	if syncs.Load() != 1 {
		t.Error("a lazy record was waited for")
	}
	if got := j.position().Seq; got != 100 {
		t.Errorf("position %d tells of a record that may be lost", got)
	}
}

func TestJournalRunWritesAllBeforeItEnds(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := openJournal(t, dir, false)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { j.run(ctx) })
	for i := range 100 {
		j.append(record{Kind: kindReceived, ID: fmt.Sprint(i)}, nil)
	}
	cancel()
	wg.Wait()
	j.close()
	if _, rs, _ := openJournal(t, dir, true); len(rs) != 100 {
		t.Errorf("%d records", len(rs))
	}
}

// After a failed write the file is whole, after a failed fsync it is made anew.
func TestJournalThatCannotBeWritten(t *testing.T) {
	boom := errors.New("boom")
	for name, fail := range map[string]func(*journal){
		"write": func(j *journal) {
			j.faults.write = func(f *os.File, b []byte) (int, error) {
				n, _ := f.Write(b[:len(b)/2])
				return n, boom
			}
		},
		"fsync": func(j *journal) { j.faults.sync = func(*os.File) error { return boom } },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j, _, _ := openJournal(t, dir, false)
			put(t, j, story("a", kindStarted)...)
			good := j.faults
			fail(j)
			for range 2 {
				var got error
				j.append(record{Kind: kindEnded, ID: "a"}, func(err error) { got = err })
				j.commit()
				if !errors.Is(got, boom) {
					t.Errorf("got %v", got)
				}
			}
			j.faults = good
			put(t, j, record{Kind: kindEnded, ID: "a"})
			j.close()
			_, rs, what := openJournal(t, dir, true)
			if what != "" || !strings.HasSuffix(kinds(rs), "a:ended") {
				t.Errorf("got %s, damage %q", kinds(rs), what)
			}
		})
	}
}

// On a full disk new commands are refused, and those that are here can end.
func TestC049RoomToEnd(t *testing.T) {
	j, _, _ := openJournal(t, t.TempDir(), false)
	put(t, j, story("a", kindStarted)...)
	j.faults.allocate = func(*os.File, int64) error { return unix.ENOSPC }
	j.faults.write = func(f *os.File, b []byte) (int, error) {
		if j.size+int64(len(b)) > j.room {
			return 0, unix.ENOSPC
		}
		return f.Write(b)
	}
	var refused error
	for range 20 { // more than one step of room
		j.append(record{Kind: kindReceived, ID: "b", Command: make([]byte, 100<<10)}, func(err error) { refused = err })
		j.commit()
	}
	if !errors.Is(refused, errNoRoom) {
		t.Errorf("got %v", refused)
	}
	put(t, j, record{Kind: kindEnded, ID: "a"})
}

// damageJournal writes a journal of n commands that have ended, and one more
// that is only received, and lets spoil change the file.
func damageJournal(t *testing.T, n int, spoil func(b []byte) []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	j, _, _ := openJournal(t, dir, false)
	for i := range n {
		put(t, j, record{Kind: kindReceived, ID: fmt.Sprintf("c%02d", i)}, record{Kind: kindEnded, ID: fmt.Sprintf("c%02d", i)})
	}
	j.close()
	b, err := os.ReadFile(j.path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.path(), spoil(b), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestC047Damage(t *testing.T) {
	const n = 40
	cut := func(percent int) func([]byte) []byte {
		return func(b []byte) []byte { return b[:len(b)-len(b)*percent/100-1] }
	}
	for _, c := range []struct {
		name     string
		spoil    func([]byte) []byte
		least    int // commands that must be known to have ended
		newEpoch bool
		aside    bool
	}{
		{"cut by 1 byte", func(b []byte) []byte { return b[:len(b)-1] }, n - 1, false, true},
		{"cut by 1 %", cut(1), n - 2, false, true},
		{"cut by 10 %", cut(10), n*9/10 - 2, false, true},
		{"cut by 50 %", cut(50), n/2 - 2, false, true},
		{"last 512 bytes zero", func(b []byte) []byte { clear(b[len(b)-512:]); return b }, n - 6, false, true},
		{"100 bytes of noise behind", func(b []byte) []byte { return append(b, bytes.Repeat([]byte("mj1\nx"), 20)...) }, n, false, true},
		{"a bit flipped in the middle", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, n - 1, false, true},
		{"noise in the middle", func(b []byte) []byte {
			return slices.Concat(b[:len(b)/2], bytes.Repeat([]byte{0xff}, 100), b[len(b)/2:])
		}, n - 1, false, true},
		{"first 30 bytes zero", func(b []byte) []byte { clear(b[:30]); return b }, n, true, true},
		{"all zero", func(b []byte) []byte { clear(b); return b }, 0, true, true},
		{"empty", func([]byte) []byte { return nil }, 0, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			intact := damageJournal(t, n, func(b []byte) []byte { return b })
			before, _, _ := openJournal(t, intact, true)
			dir := damageJournal(t, n, c.spoil)
			j, rs, what := openJournal(t, dir, true)
			if what == "" {
				t.Error("the damage is not reported")
			}
			ended := map[string]bool{}
			for _, r := range rs {
				if r.Kind == kindEnded {
					ended[r.ID] = true
				}
			}
			if len(ended) < c.least {
				t.Errorf("%d commands are known to have ended, want %d", len(ended), c.least)
			}
			asides, _ := filepath.Glob(filepath.Join(dir, "journal.damaged-*"))
			if (len(asides) == 1) != c.aside {
				t.Errorf("set aside: %v", asides)
			}
			if pos := j.position(); !c.newEpoch && pos.Seq > before.position().Seq {
				t.Errorf("seq %d, was %d", pos.Seq, before.position().Seq)
			}
			// What was set aside is reported once; then all is well again.
			put(t, j, record{Kind: kindReceived, ID: "new"})
			epoch := j.position().Epoch
			j.close()
			j, again, what := openJournal(t, dir, true)
			if what != "" || len(again) < len(ended) {
				t.Errorf("second start: %q, %d records", what, len(again))
			}
			if j.position().Epoch != epoch || (c.aside && j.asides() == "") {
				t.Errorf("epoch %s → %s, asides %q", epoch, j.position().Epoch, j.asides())
			}
		})
	}
}

func TestC047EpochOfDamage(t *testing.T) {
	epoch := func(dir string, known bool) string {
		j, _, _ := openJournal(t, dir, known)
		defer j.close()
		return j.position().Epoch
	}
	dir := t.TempDir()
	first := epoch(dir, false)
	if epoch(dir, true) != first {
		t.Error("a second start made a new epoch")
	}
	file := filepath.Join(dir, "journal")
	b, _ := os.ReadFile(file)
	if err := os.WriteFile(file, append(b, "noise"...), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := epoch(dir, true)
	if damaged == first {
		t.Error("a damaged journal goes on as the old one")
	}
	if epoch(dir, true) != damaged {
		t.Error("the start after the damage made a new epoch, too")
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	second := epoch(dir, true)
	if second == damaged {
		t.Error("an empty journal goes on as the old one")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if epoch(dir, true) == second {
		t.Error("a missing journal goes on as the old one")
	}
}

func TestC047CannotBeRead(t *testing.T) {
	dir := damageJournal(t, 3, func(b []byte) []byte { return b })
	// A folder in its place cannot be read by root either.
	file := filepath.Join(dir, "journal")
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	j, rs, what := openJournal(t, dir, true)
	if what == "" || len(rs) != 0 || j.asides() == "" {
		t.Errorf("got %q, %v, asides %q", what, rs, j.asides())
	}
}

func BenchmarkJournalAppend(b *testing.B) {
	j, _, _ := openJournal(b, b.TempDir(), false)
	for b.Loop() {
		j.append(record{Kind: kindEnded, ID: "01J00000000000000000000000", Target: make([]byte, 300)}, nil)
		j.commit()
	}
}

func BenchmarkJournalAppendGrouped(b *testing.B) {
	j, _, _ := openJournal(b, b.TempDir(), false)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { j.run(ctx) })
	b.RunParallel(func(pb *testing.PB) {
		done := make(chan struct{})
		for pb.Next() {
			j.append(record{Kind: kindEnded, ID: "01J00000000000000000000000", Target: make([]byte, 300)}, func(error) { done <- struct{}{} })
			<-done
		}
	})
	cancel()
	wg.Wait()
}
