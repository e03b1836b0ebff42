package agentd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// bubbleClock is a boot-time clock that follows the time of a synctest bubble.
func bubbleClock() clock {
	began := time.Now()
	return clock{bootID: "bubble", boot: func() time.Duration { return time.Since(began) }}
}

// In the bubble a goroutine that an agent leaves behind fails the test.
func TestAgentLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := bustest.NewNet()
		c := serve(t, n)
		a := runAgent(t, n, Config{Dir: dir, ID: "a", clock: bubbleClock()})
		c.send(t, ping("1"))
		end := c.end(t, "1")
		if end.State != musterv1.Target_SUCCEEDED || string(end.Result) != `{"pong":true}` || end.AgentId != "a" || end.JournalSeq == 0 {
			t.Errorf("got %v", end)
		}
		time.Sleep(time.Hour) // of heartbeats
		c.cut(t)
		c.send(t, ping("2"))
		c.end(t, "2")
		began := time.Now()
		a.stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("an idle agent took %v to end", took)
		}
		synctest.Wait()
		if c.goodbyes != 1 {
			t.Errorf("%d goodbyes", c.goodbyes)
		}
	})
}

func TestAgentRegistersInFull(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "web-1", Version: "1.2", Tags: map[string]string{"env": "prod"}, Allow: []string{"exec"}})
	r := c.registered(t)
	if r.AgentId != "web-1" || r.RunId == "" || r.Tags["env"] != "prod" || r.Attributes.Version != "1.2" || r.Attributes.Pid != uint32(os.Getpid()) ||
		r.Attributes.Hostname == "" || r.Attributes.Os != "linux" || r.Journal.Epoch == "" || r.SequenceNum != 1 || r.Capabilities&15 != 15 ||
		r.StartupTime == nil || fmt.Sprint(r.CommandTypes) != "[ping exec]" || r.Attributes.Extras["journal_damage"] != "" {
		t.Errorf("got %v", r)
	}
}

// TestAgentTellsWhetherItRunsHooks: nobody else can know.
func TestAgentTellsWhetherItRunsHooks(t *testing.T) {
	for _, allow := range [][]string{nil, {"exec"}, {"exec", "hooks"}} {
		n := bustest.NewNet()
		c := serve(t, n)
		runAgent(t, n, Config{Dir: t.TempDir(), ID: "web-1", Allow: allow})
		runs := c.registered(t).Capabilities&uint64(musterv1.AgentCapability_RUNS_HOOKS) != 0
		if runs != slices.Contains(allow, "hooks") {
			t.Errorf("allowed %q, it tells %v", allow, runs)
		}
	}
}

func TestExecOutputGoesUp(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, OutputCap: 200 << 10})
	c.send(t, shell("x", `head -c 300000 /dev/zero | tr '\0' x; echo "$MUSTER_COMMAND_ID $MUSTER_AGENT_ID" >&2; pwd >&2; exit 3`))
	end := c.end(t, "x")
	if end.State != musterv1.Target_FAILED || end.GetExitCode() != 3 || end.Reason != "x a\n/" {
		t.Errorf("got %v", end)
	}
	out := c.out("xSTDOUT")
	if end.Stdout.Size != 300000 || int(end.Stdout.Kept) != len(out) || len(out) != 200<<10 || !end.Stdout.Truncated || end.Stdout.Head != 100<<10 {
		t.Errorf("stdout %v, %d bytes", end.Stdout, len(out))
	}
	if got := c.out("xSTDERR"); got != "x a\n/\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestRejected(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"})
	big := ping("big")
	big.Input = []byte(`"` + strings.Repeat("x", maxInput) + `"`)
	for _, r := range []struct {
		cmd  *musterv1.Command
		want string
	}{
		{shell("forbidden", "true"), "--allow exec"},
		{&musterv1.Command{Id: "unknown", Type: "nosuch"}, `no command type "nosuch"`},
		{&musterv1.Command{Id: "C079", Type: "../../bin/sh"}, "no command type"},
		{&musterv1.Command{Id: "input", Type: "ping", Input: []byte(`{"x":1}`)}, "input.x"},
		{big, "at most"},
	} {
		c.send(t, r.cmd)
		if end := c.end(t, r.cmd.Id); end.State != musterv1.Target_REJECTED || !strings.Contains(end.Reason, r.want) {
			t.Errorf("%s: got %v", r.cmd.Id, end)
		}
	}
	for _, id := range []string{"", "../x", ".x", "a/b", strings.Repeat("x", 129)} {
		c.note(func() { c.nacks = nil })
		c.send(t, ping(id))
		c.until(t, "a Nack", func() bool { return len(c.nacks) > 0 })
		if k := c.nacks[0]; k.Reason != musterv1.Nack_INVALID || k.Field != "id" {
			t.Errorf("%q: got %v", id, k)
		}
	}
	a.stop()
}

func TestC034DuplicateDelivery(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	file := filepath.Join(t.TempDir(), "ran")
	c := serve(t, n)
	c.setSilent(true)
	cfg := Config{Dir: dir, ID: "a", Allow: []string{"exec"}, window: 50}
	a := runAgent(t, n, cfg)
	x := shell("x", `sleep 0.2; echo ran >>`+file)
	c.send(t, x, x, x) // in flight more than once
	c.end(t, "x")
	again := func() {
		t.Helper()
		before := c.told("x")
		c.send(t, x)
		c.until(t, "the answer to a copy", func() bool { return c.finals("x") > before })
	}
	for range 5 {
		c.cut(t)
		again()
	}
	c.note(func() {
		held := c.registers[len(c.registers)-1].Commands
		if len(held) != 1 || held[0].CommandId != "x" || held[0].State != musterv1.Target_SUCCEEDED {
			t.Errorf("the last Register names %v, want what is not settled", held)
		}
	})
	a.stop()
	a = runAgent(t, n, cfg)
	again()
	c.setSilent(false)
	for i := range 100 { // twice the window
		c.send(t, ping(fmt.Sprintf("p%03d", i)))
		c.end(t, fmt.Sprintf("p%03d", i))
	}
	a.stop()
	a = runAgent(t, n, cfg)
	c.send(t, x) // settled by now, or answered as before
	c.send(t, ping("q"))
	c.end(t, "q")
	// One that is below the floor of what is remembered is not run either.
	c.send(t, shell("o", "echo ran >>"+file))
	if end := c.end(t, "o"); end.State != musterv1.Target_REJECTED {
		t.Errorf("got %v", end)
	}
	a.stop()
	if b, _ := os.ReadFile(file); string(b) != "ran\n" {
		t.Errorf("the file says %q", b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *musterv1.Target
	for _, m := range c.all("x") {
		if m.State < musterv1.Target_SUCCEEDED {
			continue
		}
		if first == nil {
			first = m
		}
		if m.State != first.State || !m.EndTime.AsTime().Equal(first.EndTime.AsTime()) {
			t.Errorf("answers differ: %v and %v", first, m)
		}
	}
}

func TestBusyWhenTheQueueIsFull(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 1, Queue: 2, StopGrace: time.Second})
	c.send(t, shell("run", "sleep 100"))
	c.waitFor(t, "run", musterv1.Target_RUNNING)
	c.send(t, ping("1"), ping("2"), ping("3"))
	c.until(t, "Busy", func() bool { return len(c.busy) > 0 })
	if fmt.Sprint(c.busy) != "[3]" {
		t.Errorf("busy for %v", c.busy)
	}
	if len(a.ledger.held) != 3 {
		t.Errorf("%d commands are held", len(a.ledger.held))
	}
	a.stop()
	if end := c.end(t, "run"); end.State != musterv1.Target_INTERRUPTED {
		t.Errorf("got %v", end)
	}
}

// What waits when the agent ends runs after the next start, in order.
func TestC033ReceivedRunsAfterTheStart(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	file := filepath.Join(t.TempDir(), "ran")
	c := serve(t, n)
	cfg := Config{Dir: dir, ID: "a", Allow: []string{"exec"}, Parallel: 1, StopGrace: time.Second}
	a := runAgent(t, n, cfg)
	c.send(t, shell("block", "sleep 100"))
	c.waitFor(t, "block", musterv1.Target_RUNNING)
	for i := range 3 {
		c.send(t, shell(fmt.Sprint(i), fmt.Sprintf("echo %d >>%s", i, file)))
		c.waitFor(t, fmt.Sprint(i), musterv1.Target_RECEIVED)
	}
	late := ping("late")
	late.ExpiresIn = durationpb.New(time.Millisecond)
	c.send(t, late)
	if end := c.end(t, "late"); end.State != musterv1.Target_EXPIRED {
		t.Errorf("got %v", end)
	}
	a.stop()
	if _, err := os.Stat(file); err == nil {
		t.Error("something ran while the agent ended")
	}
	runAgent(t, n, cfg)
	c.end(t, "2")
	if b, _ := os.ReadFile(file); string(b) != "0\n1\n2\n" {
		t.Errorf("ran %q", b)
	}
}

func TestC068AgentStopsWithAStubbornProgram(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, StopGrace: 500 * time.Millisecond})
	c.send(t, shell("x", `trap '' TERM; (trap '' TERM; sleep 100) & sleep 100`))
	c.waitFor(t, "x", musterv1.Target_RUNNING)
	began := time.Now()
	a.stop()
	if took := time.Since(began); took > 2500*time.Millisecond {
		t.Errorf("took %v", took)
	}
	if end := c.end(t, "x"); end.State != musterv1.Target_INTERRUPTED {
		t.Errorf("got %v", end)
	}
	if left := plugin.KillMarked("MUSTER_COMMAND_ID=x", "MUSTER_AGENT_ID=a"); left != 0 {
		t.Errorf("%d processes are left", left)
	}
}

// failing lets the journal's fsync fail when a batch has the given kind of record.
func failing(k kind) func(*Agent) {
	return func(a *Agent) {
		var mu sync.Mutex
		hit := false
		write, sync := a.journal.faults.write, a.journal.faults.sync
		a.journal.faults.write = func(f *os.File, b []byte) (int, error) {
			mu.Lock()
			hit = strings.Contains(string(b), `"kind":"`+string(k)+`"`)
			mu.Unlock()
			return write(f, b)
		}
		a.journal.faults.sync = func(f *os.File) error {
			mu.Lock()
			defer mu.Unlock()
			if hit {
				return errors.New("disk on fire")
			}
			return sync(f)
		}
	}
}

func TestNotStartedIfThatCannotBeJournaled(t *testing.T) {
	n := bustest.NewNet()
	file := filepath.Join(t.TempDir(), "ran")
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 1}, failing(kindStarted))
	awaitExecutor(t, a.executor)
	goOn := filepath.Join(t.TempDir(), "go")
	c.send(t, shell("before", "true"+waitFile(goOn)), shell("x", "echo ran >"+file)) // x has to wait, or its start is one record with its receipt
	c.waitFor(t, "x", musterv1.Target_RECEIVED)
	touch(t, goOn)
	end := c.end(t, "x")
	if end.State != musterv1.Target_REJECTED || !strings.Contains(end.Reason, "disk on fire") {
		t.Errorf("got %v", end)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it ran")
	}
}

func TestNotAcceptedIfThatCannotBeJournaled(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"}, failing(kindReceived))
	c.send(t, ping("x"))
	c.until(t, "Busy", func() bool { return len(c.busy) > 0 })
	if len(c.targets) > 0 || a.ledger.holds("x") {
		t.Errorf("targets %v", c.targets)
	}
}

// The end of a command is told even if the journal cannot have it.
func TestEndIsToldIfItCannotBeJournaled(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"}, failing(kindEnded))
	c.send(t, ping("x"))
	if end := c.end(t, "x"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
}

func TestSettledInRegisteredIsForgotten(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	c := serve(t, n)
	c.setSilent(true)
	a := runAgent(t, n, Config{Dir: dir, ID: "a", Allow: []string{"exec"}})
	c.send(t, shell("x", "echo hi"))
	c.end(t, "x")
	c.until(t, "output", func() bool { return string(c.output["xSTDOUT"]) == "hi\n" })
	_ = a.onRegistered(newFakeLink(10), &musterv1.Registered{SettledIds: []string{"x", "never-seen"}})
	a.stop()
	if left, _ := os.ReadDir(filepath.Join(dir, "output")); len(left) > 0 {
		t.Errorf("kept output is left: %v", left)
	}
	_, rs, _ := openJournal(t, dir, true)
	if !strings.HasSuffix(kinds(rs), "x:settled") {
		t.Errorf("journal %s", kinds(rs))
	}
}

func TestC057TwoAgentsOnOneFolder(t *testing.T) {
	dir := t.TempDir()
	a, err := New(Config{Dir: dir, ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: dir, ID: "a"}); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("got %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a, err = New(Config{Dir: dir})
	if err != nil || a.ID() != "a" {
		t.Fatalf("got %v", err)
	}
	a.Close()
	if _, err := New(Config{Dir: dir, ID: "b"}); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("another id on the folder: %v", err)
	}
	a, err = New(Config{Dir: t.TempDir()})
	if host, _ := os.Hostname(); err != nil || a.ID() != host {
		t.Fatalf("without an id: %v, want the host's name %q", err, host)
	}
	a.Close()
}

func TestConfigRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no folder":      {},
		"bad id":         {Dir: t.TempDir(), ID: "../x"},
		"unknown policy": {Dir: t.TempDir(), Allow: []string{"ping"}},
		"no plugins":     {Dir: t.TempDir(), PluginDir: "/no/such/folder"},
		"huge tag":       {Dir: t.TempDir(), Tags: map[string]string{"x": strings.Repeat("x", maxTagValue+1)}},
		"nameless tag":   {Dir: t.TempDir(), Tags: map[string]string{"": "x"}},
		"bad tag":        {Dir: t.TempDir(), Tags: map[string]string{"x": "\xff"}},
	} {
		if a, err := New(cfg); err == nil {
			t.Errorf("%s is accepted", name)
			a.Close()
		}
	}
}

func TestC047DamagedAgent(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	file := filepath.Join(t.TempDir(), "ran")
	c := serve(t, n)
	c.setSilent(true)
	cfg := Config{Dir: dir, ID: "a", Allow: []string{"exec"}, Parallel: 1, StopGrace: time.Second}
	a := runAgent(t, n, cfg)
	c.send(t, ping("ended"))
	c.end(t, "ended")
	c.send(t, shell("block", "sleep 100"))
	c.waitFor(t, "block", musterv1.Target_RUNNING)
	safe := shell("safe", "echo safe >>"+file)
	safe.Idempotent = true
	c.send(t, shell("unsure", "echo unsure >>"+file), safe)
	c.waitFor(t, "safe", musterv1.Target_RECEIVED)
	a.stop()
	f, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Repeat("noise", 20)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	c.note(func() { c.targets, c.registers = nil, nil })
	runAgent(t, n, cfg)
	for id, want := range map[string]musterv1.Target_State{
		"ended": musterv1.Target_SUCCEEDED, "block": musterv1.Target_INTERRUPTED,
		"unsure": musterv1.Target_INTERRUPTED, "safe": musterv1.Target_SUCCEEDED,
	} {
		if end := c.end(t, id); end.State != want {
			t.Errorf("%s: got %v", id, end)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "safe\n" {
		t.Errorf("ran %q", b)
	}
	if why := c.registered(t).Attributes.Extras["journal_damage"]; !strings.Contains(why, "100 bytes") {
		t.Errorf("reported %q", why)
	}
}
