package agentd

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// awaitExecutor returns when what comes may begin at once: an agent may hear of a
// command before its executor works, and then it waits for that.
func awaitExecutor(t *testing.T, e *executor) {
	t.Helper()
	works := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.occupy != nil
	}
	for late := time.Now().Add(30 * time.Second); !works(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the executor does not work")
		}
	}
}

// Between a command's coming and its program's start is one fsync, if it need not
// wait, and one Target says both.
func TestReceiptAndStartAreOneRecord(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	file := filepath.Join(t.TempDir(), "ran")
	var syncs, before atomic.Int32
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}}, func(a *Agent) {
		sync := a.journal.faults.sync
		a.journal.faults.sync = func(f *os.File) error {
			if _, err := os.Stat(file); err != nil {
				before.Store(syncs.Add(1))
			}
			return sync(f)
		}
	})
	c.send(t, ping("warm"))
	c.end(t, "warm")
	already := before.Load()
	goOn := filepath.Join(t.TempDir(), "go")
	c.send(t, shell("x", "echo ran >"+file+waitFile(goOn)))
	c.waitFor(t, "x", musterv1.Target_RUNNING)
	left, err := newLedgerFrom(a.Agent, t.TempDir()) // what a kill would leave
	if err != nil {
		t.Fatal(err)
	}
	if h := left.held["x"]; h == nil || h.state != musterv1.Target_RUNNING || h.run == "" || h.command.GetId() != "x" {
		t.Errorf("the journal tells %+v", h)
	}
	touch(t, goOn)
	if end := c.end(t, "x"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
	if n := before.Load() - already; n != 1 {
		t.Errorf("%d fsyncs before it ran, want 1", n)
	}
	c.note(func() {
		if all := c.all("x"); len(all) != 2 {
			t.Errorf("told %v, want that it runs and that it has ended", all)
		}
	})
}

// newLedgerFrom reads a copy of an agent's journal.
func newLedgerFrom(a *Agent, dir string) (*ledger, error) {
	b, err := os.ReadFile(a.journal.path())
	if err != nil {
		return nil, err
	}
	j := newJournal(dir, 10, a.log, a.metrics)
	defer j.close()
	if err := os.WriteFile(j.path(), b, 0o600); err != nil {
		return nil, err
	}
	l := newLedger(j, 100, 100)
	_, err = j.open(true, l.replay)
	return l, err
}

// Nothing overtakes: who finds others waiting waits behind them.
func TestBeginsOnlyWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(1)
		e.left = func(*held) time.Duration { return time.Hour }
		goOn := make(chan struct{})
		e.start = func(context.Context, *held) func() { return func() { <-goOn } }
		not := func(why string) {
			t.Helper()
			if e.begin(func(context.Context) { t.Error("it ran " + why) }) {
				t.Error("begun " + why)
			}
		}
		not("before anything may run")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { e.run(ctx) })
		synctest.Wait()
		ends := make(chan struct{})
		if !e.begin(func(context.Context) { <-ends }) {
			t.Error("not begun, and there was a slot")
		}
		not("without a slot")
		e.put(&held{id: "waits"})
		close(ends)
		synctest.Wait()
		not("and one had waited for the slot")
		close(goOn)
		synctest.Wait()
		stopped := false
		if !e.begin(func(ctx context.Context) { <-ctx.Done(); stopped = true }) {
			t.Error("not begun, and the slot was free again")
		}
		cancel()
		wg.Wait()
		if !stopped {
			t.Error("run did not wait for what it runs")
		}
		not("after the end")
	})
}

// A second command that comes while the first is being journaled stays behind it.
func TestBeginningWaitsForThoseBefore(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 1})
	file := filepath.Join(t.TempDir(), "ran")
	var cmds []*musterv1.Command
	want := ""
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		cmds = append(cmds, shell(id, "echo "+id+" >>"+file))
		want += id + "\n"
	}
	c.send(t, cmds...)
	for _, cmd := range cmds {
		c.end(t, cmd.Id)
	}
	if b, _ := os.ReadFile(file); string(b) != want {
		t.Errorf("started in the order %q", b)
	}
}

// A copy that finds a free slot is made ready and then not run.
func TestCopyIsNotBegun(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 2})
	dir := t.TempDir()
	file, goOn := filepath.Join(dir, "ran"), filepath.Join(dir, "go")
	cmd := shell("x", "echo ran >>"+file+waitFile(goOn))
	c.send(t, cmd, cmd, cmd)
	c.waitFor(t, "x", musterv1.Target_RUNNING)
	c.send(t, ping("y")) // its slot is the one that the copies had
	c.end(t, "y")
	touch(t, goOn)
	c.end(t, "x")
	c.send(t, cmd)
	c.send(t, ping("z"))
	c.end(t, "z")
	if b, _ := os.ReadFile(file); string(b) != "ran\n" {
		t.Errorf("it ran: %q", b)
	}
}
