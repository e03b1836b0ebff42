package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
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
// answer, right after they were sent, while results come, and while requests
// are made. Every accepted command gets its result, and the programs' own record
// shows each once; one whose answer never came ran once or not at all.
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
	post := func(line string) (id string, err error) {
		status, answer, err := f.ask("POST", "/v1/commands", commandBody(agents, `echo "$2/$MUSTER_AGENT_ID" >>"$1"; sleep 0.2`, record, line))
		if err == nil && status != http.StatusAccepted {
			err = fmt.Errorf("%d %s", status, answer)
		}
		if err != nil {
			return "", err
		}
		return idOf(t, answer), nil
	}

	accepted := map[string]string{} // the line that a command writes → its id, "" when the answer never came
	for round := range rounds {
		for i := range perRound {
			line := fmt.Sprintf("r%d-%d", round, i)
			id, err := post(line)
			if err != nil {
				t.Fatalf("POST: %v", err)
			}
			accepted[line] = id
		}
		raced := make(chan string, 1)
		line := fmt.Sprintf("r%d-raced", round)
		go func() {
			id, _ := post(line) // the crash may come before, in or after it
			raced <- id
		}()
		<-time.After(time.Duration(round%3) * time.Duration(rand.IntN(300)) * time.Millisecond) // the moment of the crash is the case
		f.coordinator.kill()
		accepted[line] = <-raced
		f.startCoordinator()
	}
	for line, id := range accepted {
		if id == "" {
			continue
		}
		for agent, got := range f.waitDone(id, 2*time.Minute) {
			if got.State != "SUCCEEDED" {
				t.Errorf("%s on %s: %+v", line, agent, got)
			}
		}
	}
	f.waitAllDone()
	times := ran(t, record)
	for line, id := range accepted {
		for _, agent := range agents {
			n := times[line+"/"+agent]
			if n > 1 || n == 0 && id != "" {
				t.Errorf("%s on %s, command %q, ran %d times", line, agent, id, n)
			}
		}
	}
}

// waitAllDone returns when no command is open any more.
func (f *fleet) waitAllDone() {
	f.t.Helper()
	f.waitAllDoneWithin(time.Minute)
}

func (f *fleet) waitAllDoneWithin(within time.Duration) {
	f.t.Helper()
	eventually(f.t, within, "all commands are done", func() bool {
		var list struct{ Commands []command }
		f.do("GET", "/v1/commands?page_size=1000", "", http.StatusOK, &list)
		return !slices.ContainsFunc(list.Commands, func(c command) bool { return c.State != "DONE" })
	})
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
	f.waitState(waiting, "a1", "RECEIVED", 10*time.Second)
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
