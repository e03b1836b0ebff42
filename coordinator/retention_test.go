package coordinator

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) keys(s store.Space) (keys []string) {
	r.t.Helper()
	err := r.c.each(r.t.Context(), s, "", func(kv store.KV) error { keys = append(keys, string(kv.Key)); return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return keys
}

func TestC113RetentionTakesNoOpenCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.KeepCommands = 10
		r.start()
		a, b := r.peer("a").join(), r.peer("b").join()
		defer func() { a.leave(); b.leave(); r.stop(); r.store.Close() }()
		long := r.submit(to("a"))
		a.report(long.Id, musterv1.Target_RUNNING)
		var ids []string
		for range 100 {
			cmd := r.submit(to("b"))
			ids = append(ids, cmd.Id)
			b.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: []byte("x")})
			b.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "b", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 1}})
		}
		time.Sleep(2 * pruneEvery)
		if got := walk(t, r, &musterv1.ListCommandsRequest{}); len(got) != 11 || got[10] != long.Id || got[0] != ids[99] {
			t.Fatalf("%d commands are left: %v", len(got), got)
		}
		for _, s := range []store.Space{spaceHistory, spaceBulk} {
			for _, k := range r.keys(s) {
				if strings.Contains(k, ids[0]) || strings.Contains(k, ids[80]) {
					t.Errorf("row %s is left of a removed command", k)
				}
			}
		}
		w := r.watch("") // as soon as it has ended it is the oldest, and may go
		a.report(long.Id, musterv1.Target_SUCCEEDED)
		if got := w.kinds(); !slices.Equal(got, []string{"target a SUCCEEDED", "command DONE"}) {
			t.Errorf("its end: %v", got)
		}
		w.stop()
	})
}

func TestC112RetentionGoesByAgeAndPassesABadRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.KeepFor = time.Hour
		r.start()
		a := r.peer("a").join()
		defer func() { a.leave(); r.stop(); r.store.Close() }()
		done := func() string {
			id := r.submit(to("a")).Id
			a.report(id, musterv1.Target_SUCCEEDED)
			return id
		}
		first, bad, third := done(), done(), done()
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceHistory, Key: sumKey(bad), Value: []byte{0xff}}}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Minute)
		young := done()
		time.Sleep(15 * time.Minute)
		keys := strings.Join(r.keys(spaceHistory), " ")
		for id, want := range map[string]bool{first: false, third: false, bad: true, young: true} {
			if got := strings.Contains(keys, sumPrefix+id); got != want {
				t.Errorf("command %s is there: %v, want %v", id, got, want)
			}
		}
	})
}

func TestC112ACommandThatEndedLateHidesNoOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.KeepFor = time.Hour
		r.start()
		a := r.peer("a").join()
		defer func() { a.leave(); r.stop(); r.store.Close() }()
		long, quick := to("a"), to("a")
		long.ExpiresIn, long.Timeout = lasting(3*time.Hour), lasting(3*time.Hour)
		first, second := r.submit(long).Id, r.submit(quick).Id
		a.report(second, musterv1.Target_SUCCEEDED)
		time.Sleep(90 * time.Minute)
		if got := walk(t, r, &musterv1.ListCommandsRequest{}); len(got) != 1 || got[0] != first {
			t.Errorf("left while the first runs: %v", got)
		}
		third := r.submit(to("a")).Id
		a.report(first, musterv1.Target_SUCCEEDED)
		a.report(third, musterv1.Target_SUCCEEDED)
		time.Sleep(50 * time.Minute)
		fourth := r.submit(to("a")).Id
		a.report(fourth, musterv1.Target_SUCCEEDED)
		time.Sleep(20 * time.Minute)
		if got := walk(t, r, &musterv1.ListCommandsRequest{}); len(got) != 1 || got[0] != fourth {
			t.Errorf("left are %v, want %s", got, fourth)
		}
	})
}

func TestOldIdempotencyKeysAreForgotten(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		first, err := r.submitKey("k", to("a"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		if again, err := r.submitKey("k", to("a")); err != nil || again.Id != first.Id {
			t.Errorf("after 23 h: %v, %v", again, err)
		}
		time.Sleep(3 * time.Hour)
		if again, err := r.submitKey("k", to("a")); err != nil || again.Id == first.Id {
			t.Errorf("after 26 h: %v, %v", again, err)
		}
	})
}
