package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func idOf(t *testing.T, answer []byte) string {
	t.Helper()
	var cmd command
	if err := json.Unmarshal(answer, &cmd); err != nil || cmd.ID == "" {
		t.Fatalf("no command in %s: %v", answer, err)
	}
	return cmd.ID
}

// What programs did while the coordinator was down is delivered when it is back,
// with the true times, also by agents that were killed in between.
func TestC046ResultsOutliveAnOutage(t *testing.T) {
	t.Parallel()
	showOutage(t, 30*time.Second)
}

func showOutage(t *testing.T, outage time.Duration) {
	const perAgent = 20
	f := startFleet(t)
	agents := []string{"a1", "a2", "a3"}
	processes := map[string]*process{}
	for _, id := range agents {
		processes[id] = f.startAgent(id)
	}
	f.waitOnline(agents...)
	record := filepath.Join(t.TempDir(), "record")

	var ids []string
	for i := range perAgent {
		ids = append(ids, f.submit(commandBody(agents, `sleep 1; echo "$2" >>"$1"; echo "$2"; exit 3`, record, fmt.Sprint("line-", i))))
	}
	eventually(t, 20*time.Second, "all are received", func() bool {
		for _, id := range ids {
			for _, got := range f.targets(id) {
				if got.State == "QUEUED" || got.State == "SENT" {
					return false
				}
			}
		}
		return true
	})
	f.coordinator.kill()
	down := time.Now()
	back := time.After(outage)
	eventually(t, 30*time.Second, "all programs have ended", func() bool { return len(linesOf(t, record)) == perAgent*len(agents) })
	<-time.After(time.Second) // the last line of a program is before its end, and the journal's after it
	for _, id := range agents[:2] {
		processes[id].kill()
		processes[id] = f.startAgent(id)
	}
	<-back
	up := time.Now()
	f.startCoordinator()

	for i, id := range ids {
		targets := f.waitDone(id, 30*time.Second)
		for agent, got := range targets {
			if got.State != "FAILED" || got.ExitCode == nil || *got.ExitCode != 3 {
				t.Errorf("%s on %s: %+v", id, agent, got)
			}
			if !got.EndTime.Before(up.Add(-outage/3)) || got.EndTime.Sub(got.StartTime) < 900*time.Millisecond {
				t.Errorf("%s on %s: from %v to %v, down from %v to %v", id, agent, got.StartTime, got.EndTime, down, up)
			}
			if out := f.stdout(id, agent); out != fmt.Sprintf("line-%d\n", i) {
				t.Errorf("%s on %s: stdout %q", id, agent, out)
			}
		}
		if len(targets) != len(agents) {
			t.Errorf("%s: %d targets", id, len(targets))
		}
	}
	if n := len(linesOf(t, record)); n != perAgent*len(agents) {
		t.Errorf("%d runs, want %d", n, perAgent*len(agents))
	}
	// New commands do not wait behind what is drained.
	start := time.Now()
	f.waitDone(f.submit(commandBody(agents, `true`)), 5*time.Second)
	t.Logf("a new command took %v", time.Since(start))
}
