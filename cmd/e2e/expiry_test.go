package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A command that expired while its agent was away is not run when it is back.
func TestC039ExpiredCommandIsNotRun(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	a.kill()
	record := filepath.Join(t.TempDir(), "record")
	id := f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo run >>%s"]},"target":{"agents":["a1"]},"expires_in":"2s"}`, record))
	start := time.Now()
	got := f.waitDone(id, 10*time.Second)["a1"]
	if took := time.Since(start); got.State != "EXPIRED" || took > 5*time.Second || got.EndTime.IsZero() {
		t.Errorf("after %v: %+v", took, got)
	}
	f.startAgent("a1")
	f.waitOnline("a1")
	f.wantEcho("a1")
	if n := len(linesOf(t, record)); n > 0 {
		t.Errorf("it ran %d times", n)
	}

	// The agent refuses, too: it got the command in time, and could not start it.
	a.kill()
	for _, bad := range []string{`"0s"`, `"-5s"`, `"1ns"`, `"876000h"`, `"31d"`, `"soon"`, `5`, `""`, `null`} {
		body := `{"type":"exec","input":{"argv":["true"]},"target":{"agents":["a1"]},"expires_in":` + bad + `}`
		if status, answer, err := f.ask("POST", "/v1/commands", body); err != nil || status != 422 || !strings.Contains(string(answer), "expires_in") {
			t.Errorf("expires_in %s: %d %s %v", bad, status, answer, err)
		}
	}
}

// A command that waited in the agent's own queue past its expiry is not started.
func TestC039AgentDoesNotStartWhatHasExpired(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	for range 4 {
		f.submit(commandBody([]string{"a1"}, `echo busy >>"$1"; sleep 4`, record))
	}
	eventually(t, 10*time.Second, "all places are taken", func() bool { return len(linesOf(t, record)) == 4 })
	id := f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo late >>%s"]},"target":{"agents":["a1"]},"expires_in":"1s"}`, record))
	got := f.waitDone(id, 20*time.Second)["a1"]
	if got.State != "REJECTED" && got.State != "EXPIRED" {
		t.Errorf("got %+v", got)
	}
	if n := ran(t, record)["late"]; n > 0 {
		t.Errorf("it ran %d times", n)
	}
}

// What an agent tells after its target was given up is kept beside it, marked
// late, and changes nothing.
func TestC038ResultAfterTheEnd(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--grace", "1s")
	a := f.startAgent("a1")
	f.waitOnline("a1")
	w := f.watch("?kinds=target")
	record := filepath.Join(t.TempDir(), "record")
	id := f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo run >>%s; sleep 1; echo end >>%s"]},"target":{"agents":["a1"]},"expires_in":"1s","timeout":"2s"}`, record, record))
	eventually(t, 10*time.Second, "it runs", func() bool { return ran(t, record)["run"] == 1 })
	a.signal(syscall.SIGSTOP)
	if got := f.waitDone(id, 20*time.Second)["a1"]; got.State != "LOST" {
		t.Errorf("got %+v", got)
	}
	a.signal(syscall.SIGCONT)
	eventually(t, maxBackOff, "the late result is there", func() bool { return f.targets(id)["a1"].Late != nil })
	if got := f.targets(id)["a1"]; got.State != "LOST" || got.Late.State != "SUCCEEDED" && got.Late.State != "TIMED_OUT" || got.Late.EndTime.IsZero() {
		t.Errorf("got %+v, late %+v", got, got.Late)
	}
	f.coordinator.kill() // nor does a restart change it
	f.startCoordinator()
	f.waitOnline("a1")
	if got := f.targets(id)["a1"]; got.State != "LOST" || got.Late == nil {
		t.Errorf("after the restart: %+v", got)
	}
	if n := w.count(func(e event) bool { return e.Target.CommandID == id && e.Target.State == "SUCCEEDED" }); n > 0 {
		t.Errorf("SUCCEEDED was told %d times", n)
	}
}

// Expiry passes while the coordinator is down, and the agent has the result:
// it is taken, or the target was given up and keeps it as late.
func TestC038ExpiryWhileTheCoordinatorIsDown(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--grace", "1s")
	f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	id := f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo run >>%s; sleep 1; echo end >>%s"]},"target":{"agents":["a1"]},"expires_in":"1s","timeout":"2s"}`, record, record))
	eventually(t, 10*time.Second, "it runs", func() bool { return ran(t, record)["run"] == 1 })
	f.coordinator.kill()
	<-time.After(5 * time.Second) // expiry + timeout + grace
	f.startCoordinator()
	var got target
	eventually(t, maxBackOff, "the result is there", func() bool {
		got = f.targets(id)["a1"]
		return got.State == "SUCCEEDED" || got.State == "LOST" && got.Late != nil && got.Late.State == "SUCCEEDED"
	})
	<-time.After(2 * time.Second)
	if again := f.targets(id)["a1"]; again.State != got.State {
		t.Errorf("was %s, is %s", got.State, again.State)
	}
	t.Logf("%s", got.State)
}

// A program that hangs until its timeout holds up nobody who comes after it,
// also when the agent is killed, or the coordinator starts again, meanwhile.
func TestC040TimedOutCommandDoesNotBlock(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []string{"nothing", "the agent is killed", "the coordinator is killed"} {
		t.Run(meanwhile, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t)
			a := f.startAgent("a1", "--stop-grace", "1s")
			f.waitOnline("a1")
			record := filepath.Join(t.TempDir(), "record")
			var hanging []string
			for range 4 { // as many as may run at once
				hanging = append(hanging, f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo hang >>%s; exec sleep 300"]},"target":{"agents":["a1"]},"timeout":"3s"}`, record)))
			}
			eventually(t, 10*time.Second, "all places are taken", func() bool { return len(linesOf(t, record)) == 4 })
			start := time.Now()
			var quick []string
			for range 10 {
				quick = append(quick, f.submit(commandBody([]string{"a1"}, "true")))
			}
			switch meanwhile {
			case "the agent is killed":
				a.kill()
				f.startAgent("a1", "--stop-grace", "1s")
			case "the coordinator is killed":
				f.coordinator.kill()
				f.startCoordinator()
			}
			for _, id := range quick {
				if got := f.waitDone(id, 30*time.Second)["a1"]; got.State != "SUCCEEDED" {
					t.Errorf("quick: %+v", got)
				}
			}
			if took := time.Since(start); took > 3*time.Second+10*time.Second {
				t.Errorf("the quick ones took %v", took)
			}
			for _, id := range hanging {
				got := f.waitDone(id, 10*time.Second)["a1"]
				if got.State != "TIMED_OUT" && !(got.State == "INTERRUPTED" && meanwhile == "the agent is killed") {
					t.Errorf("hanging: %+v", got)
				}
			}
		})
	}
}
