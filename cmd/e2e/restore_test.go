package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orphans are results of commands that the coordinator does not know.
var orphans = regexp.MustCompile(`muster_coordinator_dropped_total{[a-z]+="orphan"} [1-9]`)

// TestC060RestoredOlderStore puts back a copy of the store while the agents know
// more than it: nothing runs twice, what nobody asked for any more is taken off
// the agents, and new ids are new.
func TestC060RestoredOlderStore(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--grace", "1s")
	agents := []string{"a1", "a2"}
	f.startAgent("a1")
	a2 := f.startAgent("a2")
	f.waitOnline(agents...)
	record := filepath.Join(t.TempDir(), "record")
	const script = `echo "$MUSTER_COMMAND_ID/$MUSTER_AGENT_ID" >>"$1"`
	before := f.submit(commandBody(agents, script, record))
	f.waitDone(before, 10*time.Second)
	a2.signal(syscall.SIGTERM)
	a2.wantExit(10*time.Second, 0)
	queued := f.submit(strings.Replace(commandBody([]string{"a2"}, script, record), `{`, `{"expires_in":"15s","timeout":"1s",`, 1))
	f.coordinator.signal(syscall.SIGTERM)
	f.coordinator.wantExit(10*time.Second, 0)
	backup := f.copyStore()

	// What the copy does not know.
	f.startCoordinator()
	f.startAgent("a2")
	f.waitOnline(agents...)
	var newer []string
	for range 100 {
		newer = append(newer, f.submit(commandBody(agents, script, record)))
	}
	for _, id := range append(newer, queued) {
		f.waitDone(id, 30*time.Second)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	running := f.submit(commandBody([]string{"a1"}, script+`; until [ -e "$2" ]; do sleep 0.1; done`, record, gate))
	f.waitState(running, "a1", "RUNNING", 10*time.Second)
	f.coordinator.kill()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(backup, f.storeFile()); err != nil {
		t.Fatal(err)
	}
	f.startCoordinator()
	f.waitOnline(agents...)

	for _, id := range append(newer, running) {
		if status, answer, err := f.ask("GET", "/v1/commands/"+id, ""); err != nil || status != http.StatusNotFound {
			t.Fatalf("command %s of the future: %d %s %v", id, status, answer, err)
		}
	}
	if got := f.targets(before)["a1"].State; got != "SUCCEEDED" {
		t.Errorf("the command before the copy is %s", got)
	}
	eventually(t, 10*time.Second, "the result that nobody asked for is acknowledged", func() bool {
		return orphans.MatchString(f.metrics())
	})
	seen := map[string]bool{before: true, queued: true, running: true}
	for _, id := range newer {
		seen[id] = true
	}
	last := slices.Max(slices.Collect(maps.Keys(seen)))
	for range 20 {
		id := f.submit(commandBody(agents, script, record))
		if seen[id] || id <= last {
			t.Errorf("new id %s after %s", id, last)
		}
		seen[id], last = true, id
		for agent, got := range f.waitDone(id, 10*time.Second) {
			if got.State != "SUCCEEDED" {
				t.Errorf("new command on %s: %+v", agent, got)
			}
		}
	}
	// The copy has it as not sent; the agent has run it and stays silent.
	if got := f.waitDone(queued, 30*time.Second)["a2"]; got.State != "LOST" && got.State != "EXPIRED" {
		t.Errorf("the command that was queued in the copy: %+v", got)
	}
	times := ran(t, record)
	for line, n := range times {
		if n > 1 {
			t.Errorf("%s ran %d times", line, n)
		}
	}
	if want := 2 + 1 + 200 + 1 + 40; len(times) != want {
		t.Errorf("%d programs ran, want %d", len(times), want)
	}
	f.wantSoundStore()
}

// copyStore copies the store of a coordinator that has ended.
func (f *fleet) copyStore() (path string) {
	f.t.Helper()
	path = filepath.Join(f.dir, "backup")
	copyFile(f.t, f.storeFile(), path)
	return path
}

func (f *fleet) metrics() string {
	f.t.Helper()
	status, answer, err := f.ask("GET", "/metrics", "")
	if err != nil || status != http.StatusOK {
		f.t.Fatalf("metrics: %d %s %v", status, answer, err)
	}
	return string(answer)
}

// Configs converge to what the restored store says: agents go back to its
// version, and a number that is given a second time is another version.
func TestC060RestoredStoreDecidesAboutConfigs(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1", "--allow", "hooks")
	f.waitOnline("a1")
	reloads := filepath.Join(f.dir, "reloads")
	apply := func(version int, content string) {
		t.Helper()
		f.putConfig("app", content, reloads)
		f.bindFleet("app", version)
	}
	wantHeld := func(version int, content string) {
		t.Helper()
		eventually(t, 20*time.Second, fmt.Sprintf("%q as version %d", content, version), func() bool {
			return f.held("a1", "app") == content && f.configOn("a1", "app") == configStatus{"PIPELINE", "app", "APPLIED", version, version, version}
		})
	}
	apply(1, "one\n")
	wantHeld(1, "one\n")
	f.coordinator.signal(syscall.SIGTERM)
	f.coordinator.wantExit(10*time.Second, 0)
	backup := f.copyStore()
	f.startCoordinator()
	f.waitOnline("a1")
	for version, content := range []string{"two\n", "three\n"} {
		apply(version+2, content)
	}
	wantHeld(3, "three\n")
	f.coordinator.kill()
	if err := os.Rename(backup, f.storeFile()); err != nil {
		t.Fatal(err)
	}
	f.startCoordinator()
	f.waitOnline("a1")
	wantHeld(1, "one\n")
	apply(2, "another two\n")
	wantHeld(2, "another two\n")
	apply(3, "another three\n")
	wantHeld(3, "another three\n")
}
