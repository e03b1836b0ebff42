package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The demo ends with 0 and three SUCCEEDED rows, and leaves nothing.
func TestDemoOnce(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "muster"), "demo", "--once")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var out strings.Builder
	cmd.Stdout = &out
	p := startProcess(t, "demo", cmd)
	p.wantExit(30*time.Second, 0)
	if n := strings.Count(out.String(), "SUCCEEDED"); n != 3 {
		t.Errorf("%d rows SUCCEEDED, want 3:\n%s", n, out.String())
	}
	wantNothingLeft(t, tmp)
}

// A random word sent through the demo's REST service comes back from three
// different agent processes; Ctrl-C ends it all.
func TestDemoAnswersFromThreeProcesses(t *testing.T) {
	t.Parallel()
	f, p, tmp := startDemo(t)
	mark := nonce()
	ids := []string{"demo-1", "demo-2", "demo-3"}
	id := f.submit(commandBody(ids, `echo "$1 $PPID"`, mark))
	targets := f.waitDone(id, 20*time.Second)
	parents := map[string]bool{}
	for _, agent := range ids {
		if got := targets[agent]; got.State != "SUCCEEDED" {
			t.Errorf("%s: %+v", agent, got)
			continue
		}
		word, parent, _ := strings.Cut(strings.TrimSpace(f.stdout(id, agent)), " ")
		if word != mark || parent != fmt.Sprint(f.agent(agent).Attributes.PID) {
			t.Errorf("%s says %q from process %q", agent, word, parent)
		}
		parents[parent] = true
	}
	if len(parents) != 3 || parents[fmt.Sprint(p.pid())] {
		t.Errorf("agent processes %v, demo %d", parents, p.pid())
	}
	p.signal(os.Interrupt.(syscall.Signal))
	p.wantExit(10*time.Second, 0)
	wantNothingLeft(t, tmp)
}

// When the demo is killed, its agents notice and end.
func TestDemoKilledLeavesNoProcess(t *testing.T) {
	t.Parallel()
	_, p, tmp := startDemo(t)
	if n := len(processesWith(tmp)); n != 4 {
		t.Fatalf("%d processes, want the demo and three agents", n)
	}
	p.kill()
	eventually(t, 10*time.Second, "the agents end", func() bool { return len(processesWith(tmp)) == 0 })
}

// startDemo starts a demo in a folder for temporary files of its own. The fleet
// that is returned can only ask.
func startDemo(t *testing.T) (f *fleet, p *process, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	out, err := os.Create(filepath.Join(t.TempDir(), "demo.out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	cmd := exec.Command(filepath.Join(bin, "muster"), "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Stdout = out
	p = startProcess(t, "demo", cmd)
	at := regexp.MustCompile(`REST: (\S+)  token: (\S+)/admin\.token`)
	var m []string
	eventually(t, 30*time.Second, "the demo is up", func() bool {
		b, err := os.ReadFile(out.Name())
		m = at.FindStringSubmatch(string(b))
		return err == nil && m != nil
	})
	return &fleet{t: t, url: m[1], dir: filepath.Dir(m[2])}, p, tmp
}

func wantNothingLeft(t *testing.T, tmp string) {
	t.Helper()
	if left := processesWith(tmp); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	files, err := os.ReadDir(tmp)
	if err != nil || len(files) > 0 {
		t.Errorf("files are left: %v %v", files, err)
	}
}

// The operator's command line says how it went by its exit code.
func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	if _, stderr, code := f.muster("run", "--all", "--", "true"); code != 4 {
		t.Errorf("nobody there: exit %d, %s", code, stderr)
	}
	for _, id := range []string{"a1", "a2"} {
		f.startAgent(id)
	}
	f.waitOnline("a1", "a2")
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"all succeed", []string{"run", "a1", "a2", "--", "echo", "fine"}, 0, "fine"},
		{"flags after agents", []string{"run", "a1", "--timeout", "20s", "a2", "--", "echo", "-n", "--", "x"}, 0, "-- x"},
		{"all agents", []string{"run", "--all", "--type", "ping"}, 0, "SUCCEEDED"},
		{"one fails", []string{"run", "a1", "a2", "--", "sh", "-c", `[ "$PPID" = ` + fmt.Sprint(f.agent("a1").Attributes.PID) + ` ]`}, 2, "FAILED"},
		{"all time out", []string{"run", "--all", "--timeout", "1s", "--", "sleep", "60"}, 2, "TIMED_OUT"},
		{"nobody named", []string{"run", "--", "true"}, 4, "no targets"},
		{"unknown agent", []string{"run", "nobody", "--", "true"}, 1, "nobody"},
		{"unknown type", []string{"run", "a1", "--type", "nonsense", "--input", "{}"}, 4, "nonsense"},
		{"bad timeout", []string{"run", "a1", "--timeout", "soon", "--", "true"}, 1, "timeout"},
		{"unknown flag", []string{"run", "a1", "--nonsense", "--", "true"}, 1, "nonsense"},
		{"server away", []string{"run", "--server", "http://127.0.0.1:1", "a1", "--", "true"}, 1, "cannot reach"},
	} {
		stdout, stderr, code := f.muster(tc.args...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", tc.name, code, tc.code, tc.want, stdout, stderr)
		}
	}
}

// An agent that is offline is not waited for, and the exit code says so.
func TestRunWithAgentOffline(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--heartbeat", "200ms", "--offline-after", "1s")
	f.startAgent("a1")
	gone := f.startAgent("gone")
	f.waitOnline("a1", "gone")
	gone.kill()
	eventually(t, 20*time.Second, "gone is OFFLINE", func() bool { return f.statuses()["gone"] == "OFFLINE" })

	stdout, stderr, code := f.muster("run", "--all", "--", "true")
	if code != 3 || !strings.Contains(stdout, "CANCELLED") || !strings.Contains(stdout, "SUCCEEDED") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = f.muster("run", "--all", "--when-offline", "queue", "--", "true")
	if code != 3 || !strings.Contains(stdout, "QUEUED") || !strings.Contains(stdout, "SUCCEEDED") {
		t.Errorf("queue: exit %d\n%s%s", code, stdout, stderr)
	}
}

// The list commands show what is there, as tables and as JSON.
func TestCommandLineLists(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1", "--tag", "env=test")
	f.waitOnline("a1")
	stdout, stderr, code := f.muster("run", "a1", "--name", "greeting", "-o", "json", "--", "echo", "hello")
	var ran struct{ Command command }
	if err := json.Unmarshal([]byte(stdout), &ran); err != nil || code != 0 || ran.Command.ID == "" {
		t.Fatalf("exit %d: %v\n%s%s", code, err, stdout, stderr)
	}
	id := ran.Command.ID
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"agents list", []string{"a1", "ONLINE", "env=test"}},
		{"agents list -o json", []string{`"agents"`, `"env": "test"`}},
		{"agents show a1", []string{"exec", "ping"}},
		{"agents show -o json a1", []string{`"id": "a1"`}},
		{"commands list", []string{id, "greeting", "succeeded 1"}},
		{"commands list --limit 1 -o json", []string{id}},
		{"commands show " + id, []string{"DONE", "greeting"}},
		{"commands targets " + id, []string{"a1", "SUCCEEDED"}},
		{"commands output " + id + " a1", []string{"hello\n"}},
	} {
		stdout, stderr, code := f.muster(strings.Fields(tc.args)...)
		for _, want := range tc.want {
			if code != 0 || !strings.Contains(stdout, want) {
				t.Errorf("muster %s: exit %d, want %q\n%s%s", tc.args, code, want, stdout, stderr)
			}
		}
	}
	for args, want := range map[string]string{
		"agents show nobody":         "nobody",
		"agents nonsense":            "no such command",
		"commands show nonsense":     "nonsense",
		"commands output " + id:      "want COMMAND and AGENT",
		"agents list -o yaml":        "yaml",
		"agents list --server a:b:c": "--server",
	} {
		stdout, stderr, code := f.muster(strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("muster %s: exit %d, want 1 and %q\n%s%s", args, code, want, stdout, stderr)
		}
	}
}
