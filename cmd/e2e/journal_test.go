package e2e

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An agent comes back with an older copy of its folder, or with a new one under
// its old id. It cannot know what it ran, so nothing that was sent to it is sent
// again: those targets are LOST. What was not sent yet is run.
func TestRestoredOrFreshJournalRunsNothingTwice(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, dir, copied string){
		"an older copy": func(t *testing.T, dir, copied string) {
			if err := os.CopyFS(dir, os.DirFS(copied)); err != nil {
				t.Fatal(err)
			}
		},
		"a fresh folder": func(*testing.T, string, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t)
			a := f.startAgent("a1")
			f.waitOnline("a1")
			f.wantEcho("a1") // so that the copy has a history
			a.signal(syscall.SIGTERM)
			a.wantExit(10*time.Second, 0)
			copied := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(copied, os.DirFS(f.agentDir("a1"))); err != nil {
				t.Fatal(err)
			}

			a = f.startAgent("a1")
			f.waitOnline("a1")
			record := filepath.Join(t.TempDir(), "record")
			submit := func(line string) string {
				return f.submit(commandBody([]string{"a1"}, `echo "$2" >>"$1"; sleep 3`, record, line))
			}
			running := submit("running")
			eventually(t, 10*time.Second, "it runs", func() bool { return ran(t, record)["running"] == 1 })
			f.waitState(running, "a1", "RUNNING", 10*time.Second) // only what was told makes a copy an older one
			a.signal(syscall.SIGSTOP)
			sent := submit("sent")
			f.waitState(sent, "a1", "SENT", 10*time.Second)
			a.kill()
			eventually(t, 10*time.Second, "a1 is not online", func() bool { return f.statuses()["a1"] != "ONLINE" })
			queued := submit("queued")
			if err := os.RemoveAll(f.agentDir("a1")); err != nil {
				t.Fatal(err)
			}
			replace(t, f.agentDir("a1"), copied)
			f.startAgent("a1")

			for id, want := range map[string]string{running: "LOST", sent: "LOST", queued: "SUCCEEDED"} {
				if got := f.waitDone(id, 30*time.Second)["a1"]; got.State != want {
					t.Errorf("got %+v, want %s", got, want)
				}
			}
			for line, want := range map[string]int{"running": 1, "sent": 0, "queued": 1} {
				if n := ran(t, record)[line]; n != want {
					t.Errorf("%s ran %d times, want %d", line, n, want)
				}
			}
		})
	}
}

// Agents come back on damaged journals, one kind of damage each. They start, set
// aside what is damaged, deliver what is whole, and work. Nothing runs twice.
func TestC047DamagedJournals(t *testing.T) {
	t.Parallel()
	cut := func(percent int) func(b []byte) []byte {
		return func(b []byte) []byte { return b[:len(b)*(100-percent)/100] }
	}
	damages := map[string]func(b []byte) []byte{
		"cut-1": cut(1), "cut-10": cut(10), "cut-50": cut(50),
		"zeros": func(b []byte) []byte { return append(b[:max(0, len(b)-512)], make([]byte, 512)...) },
		"empty": func([]byte) []byte { return nil },
		"noise": func(b []byte) []byte { noise := make([]byte, 100); rand.Read(noise); return append(b, noise...) },
		"whole": func(b []byte) []byte { return b },
	}
	f := startFleet(t)
	agents, processes := []string{}, map[string]*process{}
	for name := range damages {
		agents = append(agents, name)
		processes[name] = f.startAgent(name)
	}
	f.waitOnline(agents...)
	record, end := filepath.Join(t.TempDir(), "record"), filepath.Join(t.TempDir(), "end")
	var ids []string
	for range 4 { // as many as may run at once
		ids = append(ids, f.submit(commandBody(agents, `echo start/$MUSTER_COMMAND_ID/$MUSTER_AGENT_ID >>"$1"; until [ -e "$2" ]; do sleep 0.1; done; echo end/$MUSTER_COMMAND_ID/$MUSTER_AGENT_ID >>"$1"`, record, end)))
	}
	eventually(t, 20*time.Second, "all programs run", func() bool { return len(linesOf(t, record)) == len(ids)*len(agents) })
	<-time.After(1500 * time.Millisecond) // the coordinator writes down how far the journals are, at most a second late
	f.coordinator.kill()
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "all programs have ended", func() bool { return len(linesOf(t, record)) == 2*len(ids)*len(agents) })
	<-time.After(time.Second) // the last line of a program is before its end, and the journal's after it
	for _, name := range agents {
		processes[name].signal(syscall.SIGTERM)
	}
	for _, name := range agents {
		processes[name].wantExit(20*time.Second, 0)
		path := journalOf(t, f.agentDir(name))
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, damages[name](bytes.Clone(b)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		processes[name] = f.startAgent(name)
	}
	f.startCoordinator()
	f.waitOnline(agents...)
	states := map[string]map[string]int{}
	for _, id := range ids {
		for agent, got := range f.waitDone(id, 40*time.Second) {
			times := ran(t, record)
			if states[agent] == nil {
				states[agent] = map[string]int{}
			}
			states[agent][got.State]++
			started, ended := times["start/"+id+"/"+agent], times["end/"+id+"/"+agent]
			switch {
			case started > 1:
				t.Errorf("%s on %s was started %d times: %+v", id, agent, started, got)
			case got.State == "SUCCEEDED" && ended != 1:
				t.Errorf("%s on %s ended %d times: %+v", id, agent, ended, got)
			case agent == "whole" && got.State != "SUCCEEDED":
				t.Errorf("%s on the agent whose journal is whole: %+v", id, got)
			}
		}
	}
	t.Logf("%v", states)
	for _, name := range agents {
		f.wantEcho(name)
		aside, _ := filepath.Glob(filepath.Join(f.agentDir(name), "*.damaged-*"))
		if damaged := name != "whole" && name != "empty"; damaged && len(aside) == 0 {
			t.Errorf("%s: nothing is set aside", name)
		} else if name == "whole" && len(aside) > 0 {
			t.Errorf("%s: set aside: %v", name, aside)
		}
		if !processes[name].running() {
			t.Errorf("%s has ended", name)
		}
	}
}

// journalOf is the newest file of an agent's journal.
func journalOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	newest, at := "", time.Time{}
	for _, file := range files {
		info, err := file.Info()
		if err != nil || !strings.HasPrefix(file.Name(), "journal") || info.ModTime().Before(at) {
			continue
		}
		newest, at = filepath.Join(dir, file.Name()), info.ModTime()
	}
	if newest == "" {
		t.Fatalf("no journal in %s", dir)
	}
	return newest
}
