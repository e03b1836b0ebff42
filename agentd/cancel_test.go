package agentd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (c *fakeCoordinator) cancel(t *testing.T, ids ...string) {
	t.Helper()
	c.until(t, "an agent", func() bool { return c.peer != nil })
	c.mu.Lock()
	p := c.peer
	c.mu.Unlock()
	for _, id := range ids {
		if err := p.Send(&musterv1.Cancel{CommandId: id}); err != nil {
			t.Fatal(err)
		}
	}
}

func wantEnd(t *testing.T, end *musterv1.Target, s musterv1.Target_State, reason string) {
	t.Helper()
	if end.State != s || !strings.Contains(end.Reason, reason) {
		t.Errorf("got %v, want %v with %q", end, s, reason)
	}
}

// sameEnds fails when what was told of the end of a command ever changed.
func (c *fakeCoordinator) sameEnds(t *testing.T, id string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *musterv1.Target
	for _, m := range c.all(id) {
		switch {
		case m.State < musterv1.Target_SUCCEEDED:
			if first != nil {
				t.Errorf("%s: %v after its end", id, m.State)
			}
		case first == nil:
			first = m
		case m.State != first.State || !m.EndTime.AsTime().Equal(first.EndTime.AsTime()):
			t.Errorf("%s: ends %v and %v", id, first, m)
		}
	}
}

func TestC041CancelAtEachStage(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	file := filepath.Join(t.TempDir(), "ran")
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 1, StopGrace: 300 * time.Millisecond})
	c.setSilent(true)

	// Not seen yet: a command that comes after all does not run.
	c.cancel(t, "early")
	wantEnd(t, c.end(t, "early"), musterv1.Target_CANCELLED, "before it was started")
	c.send(t, shell("early", "echo early >>"+file))
	c.until(t, "the answer to the command", func() bool { return c.finals("early") == 2 })

	// One that runs, with children, and one that waits behind it.
	id := fmt.Sprintf("stubborn-%d", os.Getpid())
	c.send(t, shell(id, `trap '' TERM; (trap '' TERM; sleep 600) & (setsid sleep 600 &) ; echo up; sleep 600`), shell("waits", "echo waits >>"+file), ping("last"))
	c.waitFor(t, "last", musterv1.Target_RECEIVED)
	c.cancel(t, "waits", "waits")
	wantEnd(t, c.end(t, "waits"), musterv1.Target_CANCELLED, "before it was started")
	until(t, "the program", func() bool { return processesOf(t, id) >= 3 })
	began := time.Now()
	c.cancel(t, id, id)
	end := c.end(t, id)
	wantEnd(t, end, musterv1.Target_INTERRUPTED, "cancelled")
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second || end.Signal != "SIGKILL" {
		t.Errorf("stopped after %v by %q", took, end.Signal)
	}
	if left := processesOf(t, id); left != 0 {
		t.Errorf("%d processes are left", left)
	}
	wantEnd(t, c.end(t, "last"), musterv1.Target_SUCCEEDED, "") // the place is free again

	// Ended: told again. Settled: nobody answers.
	before := c.told("last")
	c.cancel(t, "last")
	c.until(t, "the answer to a late cancel", func() bool { return c.finals("last") > before })
	c.setSilent(false)
	c.send(t, ping("settled"))
	c.end(t, "settled")
	until(t, "the ack", func() bool { return !a.ledger.holds("settled") })
	c.cancel(t, "settled", "../x", "")
	c.until(t, "two refusals", func() bool { return len(c.nacks) == 2 })
	if k := c.nacks[0]; k.Reason != musterv1.Nack_INVALID || k.Field != "command_id" {
		t.Errorf("got %v", k)
	}
	for _, id := range []string{"early", "waits", id, "last", "settled"} {
		c.sameEnds(t, id)
	}
	if n := c.told("settled"); n != 1 {
		t.Errorf("told %d times", n)
	}
	if b, err := os.ReadFile(file); err == nil {
		t.Errorf("ran: %q", b)
	}
}

// A cancel at a random moment around the end: one end each, the one that is true.
func TestC041CancelRacesTheEnd(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	dir := t.TempDir()
	agent := fmt.Sprint("c041-", os.Getpid())
	runAgent(t, n, Config{Dir: t.TempDir(), ID: agent, Allow: []string{"exec"}, StopGrace: time.Second})
	runs := 60
	if long {
		runs = 500
	}
	for i := range runs {
		id := fmt.Sprintf("r%d", i)
		file := filepath.Join(dir, id)
		c.send(t, shell(id, `echo start >`+file+`; sleep 0.0`+fmt.Sprint(rand.IntN(3))+`; echo end >>`+file))
		<-time.After(time.Duration(rand.IntN(40)) * time.Millisecond)
		c.cancel(t, id)
		if i%2 == 0 {
			c.cancel(t, id)
		}
		end := c.end(t, id)
		b, _ := os.ReadFile(file)
		switch said := string(b); {
		case end.State == musterv1.Target_CANCELLED && said != "",
			end.State == musterv1.Target_SUCCEEDED && said != "start\nend\n":
			t.Errorf("%v, and the program wrote %q", end, said)
		case end.State != musterv1.Target_CANCELLED && end.State != musterv1.Target_SUCCEEDED && end.State != musterv1.Target_INTERRUPTED:
			t.Errorf("got %v", end)
		}
	}
	c.send(t, ping("last"))
	c.end(t, "last")
	for i := range runs {
		c.sameEnds(t, fmt.Sprintf("r%d", i))
	}
	if left := plugin.KillMarked("MUSTER_AGENT_ID=" + agent); left != 0 {
		t.Errorf("%d processes are left", left)
	}
}

func TestC041CancelIsOlderThanMemory(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", window: 2})
	for _, id := range []string{"5", "6", "7", "8"} {
		c.send(t, ping(id))
		c.end(t, id)
	}
	c.cancel(t, "1") // may be one that was run and forgotten
	wantEnd(t, c.end(t, "1"), musterv1.Target_REJECTED, "may have run")
}

// The agent is killed between the journal's word and what follows it.
func TestC041KilledWhileItCancels(t *testing.T) {
	for _, s := range []struct {
		name, at   string // the record that is on disk
		cmd        func(id string) *musterv1.Command
		idempotent bool
		state      musterv1.Target_State
		reason     string
	}{
		{"not seen", "ended", nil, false, musterv1.Target_CANCELLED, "before it was started"},
		{"running", "cancelled", func(id string) *musterv1.Command { return shell(id, "sleep 600") }, false, musterv1.Target_INTERRUPTED, "cancelled; the agent ended"},
		{"running, idempotent", "cancelled", func(id string) *musterv1.Command { return shell(id, "sleep 600") }, true, musterv1.Target_INTERRUPTED, "cancelled; the agent ended"},
		{"stopped", "ended", func(id string) *musterv1.Command { return shell(id, "sleep 600") }, true, musterv1.Target_INTERRUPTED, "cancelled"},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			ln, endpoint := listen(t)
			c := serve(t, ln)
			dir := t.TempDir()
			id := fmt.Sprintf("cancel-%d-%s", os.Getpid(), strings.Map(func(r rune) rune {
				if r < 'a' || r > 'z' {
					return '-'
				}
				return r
			}, s.name))
			agent := startChild(t, dir, endpoint, "AGENTD_TEST_HOLD="+s.at)
			if s.cmd != nil {
				cmd := s.cmd(id)
				cmd.Idempotent = s.idempotent
				c.send(t, cmd)
				until(t, "the program", func() bool { return processesOf(t, id) > 0 })
			}
			c.cancel(t, id)
			if l, err := agent.out.ReadString('\n'); err != nil || l != "held\n" {
				t.Fatalf("the agent said %q, %v", l, err)
			}
			agent.kill()
			if c.told(id) != 0 {
				t.Error("the end was told before it was on disk")
			}
			startChild(t, dir, endpoint)
			wantEnd(t, c.end(t, id), s.state, s.reason)
			if s.cmd == nil {
				c.send(t, shell(id, "sleep 600"))
			}
			c.cancel(t, id)
			c.send(t, ping("later"))
			c.end(t, "later")
			c.sameEnds(t, id)
			if left := processesOf(t, id); left != 0 {
				t.Errorf("%d processes are left", left)
			}
		})
	}
}

// A cancelled command that waits to run once more has run.
func TestC041CancelBeforeTheSecondRun(t *testing.T) {
	h := &held{id: "x", run: "mark"}
	for _, s := range []musterv1.Target_State{musterv1.Target_CANCELLED, musterv1.Target_EXPIRED} {
		if got := didRun(h, &musterv1.Target{State: s, Reason: "why"}); got.State != musterv1.Target_INTERRUPTED || !strings.Contains(got.Reason, "why") {
			t.Errorf("got %v", got)
		}
		if got := didRun(&held{id: "x"}, &musterv1.Target{State: s}); got.State != s {
			t.Errorf("got %v", got)
		}
	}
}
