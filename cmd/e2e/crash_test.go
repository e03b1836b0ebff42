package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A command that was answered with 202 is run although the coordinator is killed
// before it could reach the agent.
func TestC031AcceptedCommandOutlivesTheCoordinator(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	a.signal(syscall.SIGSTOP)

	mark := nonce()
	id := f.submit(commandBody([]string{"a1"}, `echo "$1"`, mark))
	f.coordinator.kill()
	f.startCoordinator()
	a.signal(syscall.SIGCONT)

	if got := f.waitDone(id, 30*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("got %+v", got)
	}
	if got := f.stdout(id, "a1"); got != mark+"\n" {
		t.Errorf("stdout %q", got)
	}
}

// The coordinator is killed again and again while programs run: right after the
// answer, right after they were sent, while results come. Every accepted command
// gets its result, and the programs' own record shows each once.
func TestC031EachCommandRunsOnceOver20Kills(t *testing.T) {
	t.Parallel()
	const rounds, perRound = 20, 10
	f := startFleet(t)
	agents := []string{"a1", "a2", "a3"}
	for _, id := range agents {
		f.startAgent(id)
	}
	f.waitOnline(agents...)
	record := filepath.Join(t.TempDir(), "record")

	accepted := map[string]string{} // command id → the line that it writes
	var lines []string
	for round := range rounds {
		for i := range perRound {
			line := fmt.Sprintf("r%d-%d-", round, i)
			status, answer, err := f.ask("POST", "/v1/commands", commandBody(agents, `echo "$2$MUSTER_AGENT_ID" >>"$1"; sleep 0.2`, record, line))
			if err != nil || status != http.StatusAccepted {
				t.Fatalf("POST: %d %s %v", status, answer, err)
			}
			accepted[idOf(t, answer)] = line
			lines = append(lines, line)
		}
		<-time.After(time.Duration(rand.IntN(600)) * time.Millisecond * time.Duration(round%3) / 2) // the moment of the crash is the case
		f.coordinator.kill()
		f.startCoordinator()
	}
	for id, line := range accepted {
		for agent, got := range f.waitDone(id, 2*time.Minute) {
			if got.State != "SUCCEEDED" {
				t.Errorf("%s on %s: %+v", line, agent, got)
			}
		}
	}
	times := map[string]int{}
	for _, line := range linesOf(t, record) {
		times[line]++
	}
	for _, line := range lines {
		for _, agent := range agents {
			if n := times[line+agent]; n != 1 {
				t.Errorf("%s%s ran %d times", line, agent, n)
			}
		}
	}
	if want := rounds * perRound * len(agents); len(times) != want {
		t.Errorf("%d different lines, want %d", len(times), want)
	}
}

// The agent is killed while its program runs: the command ends INTERRUPTED, is
// told once, is not run again, and no process of the program is left.
func TestC033C075AgentKilledWhileItsProgramRuns(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	w := f.watch("?kinds=target")
	record, mark := filepath.Join(t.TempDir(), "record"), nonce()

	id := f.submit(commandBody([]string{"a1"}, `echo run >>"$1"; sh -c 'sleep 300; echo "$0"' "$2" & sleep 300; echo "$2"`, record, mark))
	eventually(t, 10*time.Second, "the program runs", func() bool { return len(linesOf(t, record)) == 1 && len(processesWith(mark)) >= 2 })
	a.kill()
	f.startAgent("a1")
	back := time.Now()

	if got := f.waitDone(id, 10*time.Second)["a1"]; got.State != "INTERRUPTED" {
		t.Errorf("got %+v", got)
	}
	t.Logf("final %v after the agent's return", time.Since(back))
	eventually(t, 5*time.Second, "no process of the program is left", func() bool { return len(processesWith(mark)) == 0 })

	// A second command shows that the agent is well, and gives a repeat the time to show.
	next := f.submit(commandBody([]string{"a1"}, `sleep 1`))
	if got := f.waitDone(next, 10*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("the command after it: %+v", got)
	}
	if n := len(linesOf(t, record)); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	if n := w.count(func(e event) bool { return e.Target.CommandID == id && e.Target.State == "INTERRUPTED" }); n != 1 {
		t.Errorf("INTERRUPTED was told %d times", n)
	}
}

// Killed before it started a program, an agent runs it after its return; killed
// after its end, it tells the true result.
func TestC033AgentKilledBeforeStartAndAfterEnd(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")

	var busy []string // they fill the agent, so that the next one waits
	for range 4 {
		busy = append(busy, f.submit(commandBody([]string{"a1"}, `echo busy >>"$1"; sleep 300`, record)))
	}
	eventually(t, 10*time.Second, "four programs run", func() bool { return len(linesOf(t, record)) == 4 })
	waiting := f.submit(commandBody([]string{"a1"}, `echo waiting >>"$1"`, record))
	eventually(t, 10*time.Second, "the fifth is received", func() bool { return f.targets(waiting)["a1"].State == "RECEIVED" })
	a.kill()
	f.startAgent("a1")

	if got := f.waitDone(waiting, 20*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("received and not started: %+v", got)
	}
	for _, id := range busy {
		if got := f.waitDone(id, 20*time.Second)["a1"]; got.State != "INTERRUPTED" {
			t.Errorf("started: %+v", got)
		}
	}
	if n := len(linesOf(t, record)); n != 5 {
		t.Errorf("%d programs were started, want 5", n)
	}
}
