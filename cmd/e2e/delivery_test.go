package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// ran says how often each line was written to a record.
func ran(t *testing.T, record string) map[string]int {
	t.Helper()
	times := map[string]int{}
	for _, line := range linesOf(t, record) {
		times[line]++
	}
	return times
}

// wantOnce waits for commands and wants each to have run once and succeeded.
func (f *fleet) wantOnce(record string, commands map[string]string, agent string, within time.Duration) {
	f.t.Helper()
	for line, id := range commands {
		if got := f.waitDone(id, within)[agent]; got.State != "SUCCEEDED" {
			f.t.Errorf("%s, command %s: %+v", line, id, got)
		}
	}
	times := ran(f.t, record)
	for line, id := range commands {
		if times[line] != 1 {
			f.t.Errorf("%s, command %s, ran %d times", line, id, times[line])
		}
	}
	if len(times) != len(commands) {
		f.t.Errorf("%d lines in the record, want %d", len(times), len(commands))
	}
}

// The link is reset while a command is delivered: before it, after it, and in
// the middle of its frames. Each command runs once, and soon. There are several
// agents because one whose link breaks again and again comes back more slowly.
func TestC043LinkIsResetDuringDelivery(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	var wg sync.WaitGroup
	for i := range resetAgents {
		id := fmt.Sprintf("a%02d", i)
		r := startRelay(t, f.endpoint)
		f.startAgentVia(r.endpoint(), id)
		wg.Go(func() { f.resetDuringDelivery(r, id) })
	}
	wg.Wait()
}

func (f *fleet) resetDuringDelivery(r *relay, agent string) {
	record := filepath.Join(f.dir, agent+"-record")
	commands := map[string]string{}
	for round := range resetRounds {
		f.waitOnline(agent)
		line := fmt.Sprint("round-", round)
		if round%2 == 1 {
			r.resetAfter(1 + rand.IntN(200)) // a command is longer than that
		}
		commands[line] = f.submit(commandBody([]string{agent}, `echo "$2" >>"$1"`, record, line))
		if round%2 == 0 {
			<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond) // the moment is the case
			r.reset()
		}
	}
	start := time.Now()
	f.wantOnce(record, commands, agent, 35*time.Second) // a command is sent again after 30 s at the latest
	f.t.Logf("%s: all done %v after the last reset", agent, time.Since(start))
}

// What is sent to an agent that is away is there when it comes back, and in
// order; links that break while commands come lose none.
func TestC042CommandsForAnAgentThatIsAway(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	r := startRelay(t, f.endpoint)
	a := f.startAgentVia(r.endpoint(), "a1")
	f.waitOnline("a1")
	a.signal(15)
	a.wantExit(10*time.Second, 0)

	record := filepath.Join(t.TempDir(), "record")
	commands := map[string]string{}
	var inOrder []string
	submit := func(line string) {
		commands[line] = f.submit(commandBody([]string{"a1"}, `echo "$2" >>"$1"`, record, line))
		inOrder = append(inOrder, line)
	}
	for i := range 100 {
		submit(fmt.Sprint("away-", i))
	}
	f.startAgentVia(r.endpoint(), "a1")
	f.wantOnce(record, commands, "a1", time.Minute)
	before := time.Time{}
	for _, line := range inOrder {
		started := f.targets(commands[line])["a1"].StartTime
		if ahead := before.Sub(started); ahead > 500*time.Millisecond { // four are started at once, each after its own fsync
			t.Errorf("%s was started %v before the one ahead of it", line, ahead)
		}
		before = started
	}

	for i := range commandsWhileItFlaps {
		submit(fmt.Sprint("flapping-", i))
		if rand.IntN(10) == 0 {
			r.reset()
		}
	}
	f.wantOnce(record, commands, "a1", 2*time.Minute)
}

// An agent without a coordinator goes on trying, for little, and is there soon
// after the coordinator is.
func TestC024AgentWaitsForItsCoordinator(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.startAgent("a1")
	for _, state := range []string{"before the coordinator's first start", "after its end"} {
		before := a.cpuTime()
		<-time.After(noCoordinatorFor)
		if share := float64(a.cpuTime()-before) / float64(noCoordinatorFor); share > 0.02 {
			t.Errorf("%s the agent takes %.1f %% of a core", state, 100*share)
		}
		f.startCoordinator()
		start := time.Now()
		eventually(t, maxBackOff, "a1 is online", func() bool { return f.statuses()["a1"] == "ONLINE" })
		t.Logf("%s: online %v after it was ready", state, time.Since(start))
		f.coordinator.kill()
	}
	if n := len(linesOf(t, a.log)); n > 5000 {
		t.Errorf("%d words in its log", n)
	}
}

// One agent of many does not keep a command from its end: not those that are
// off, not one that dies in the middle. Who comes later is not meant.
func TestC045GroupWithAbsentAgents(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--grace", "1s")
	ids := []string{"on-1", "on-2", "off", "dies"}
	processes := map[string]*process{}
	for _, id := range ids {
		processes[id] = f.startAgent(id, "--tag", "group=blue")
	}
	f.waitOnline(ids...)
	processes["off"].kill()
	eventually(t, 10*time.Second, "off is not online", func() bool { return f.statuses()["off"] != "ONLINE" })
	record := filepath.Join(t.TempDir(), "record")
	id := f.submit(fmt.Sprintf(`{"type":"exec","input":{"argv":["sh","-c","echo $MUSTER_AGENT_ID >>%s; sleep 2"]},"target":{"where":"tags[\"group\"] == \"blue\""},"expires_in":"6s","timeout":"4s"}`, record))
	eventually(t, 10*time.Second, "three run", func() bool { return len(linesOf(t, record)) == 3 })
	processes["dies"].kill()
	f.startAgent("late", "--tag", "group=blue")

	targets := f.waitDone(id, 30*time.Second)
	for agent, want := range map[string]string{"on-1": "SUCCEEDED", "on-2": "SUCCEEDED", "off": "EXPIRED", "dies": "LOST"} {
		if got := targets[agent]; got.State != want {
			t.Errorf("%s: %+v, want %s", agent, got, want)
		}
	}
	if len(targets) != len(ids) {
		t.Errorf("targets: %v", targets)
	}
	f.startAgent("dies", "--tag", "group=blue")
	eventually(t, 20*time.Second, "the late word of the agent that died is kept beside LOST", func() bool {
		got := f.targets(id)["dies"]
		return got.State == "LOST" && got.Late != nil && got.Late.State == "INTERRUPTED"
	})
}
