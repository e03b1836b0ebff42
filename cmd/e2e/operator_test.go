package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wantMuster runs a command line and wants its exit code and words in what it says.
func (f *fleet) wantMuster(code int, args []string, words ...string) (stdout string) {
	f.t.Helper()
	stdout, stderr, got := f.muster(args...)
	if got != code {
		f.t.Errorf("muster %s: exit %d, want %d:\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	for _, word := range words {
		if !strings.Contains(stdout+stderr, word) {
			f.t.Errorf("muster %s does not say %q:\n%s%s", strings.Join(args, " "), word, stdout, stderr)
		}
	}
	return stdout
}

// An operator's day: choose targets, look before the leap, roll out, halt, go on,
// cancel, hold an agent, follow output.
func TestOperatorsDay(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	real := []string{"web-1", "web-2", "web-3"}
	for _, id := range real {
		f.startAgent(id, "--tag", "role=web")
	}
	for i := range 9 { // a fleet of twelve
		f.registered(fmt.Sprintf("idle-%d", i))
	}
	f.waitOnline(real...)
	record := filepath.Join(t.TempDir(), "record")
	failing := []string{"run", "-l", "role=web", "--canary", "1", "--batch", "1", "--label", "ticket=7", "--", "sh", "-c", "echo $MUSTER_AGENT_ID >>" + record + "; exit 3"}

	f.wantMuster(0, append([]string{"run", "--dry-run"}, failing[1:]...), "web-3", "3 of 12 agents")
	f.wantMuster(1, []string{"run", "--all", "--", "true"}, "12 of 12 agents", "--yes")
	f.wantMuster(4, []string{"run", "--where", `os == "plan9"`, "--", "true"})
	if n := len(linesOf(t, record)); n > 0 {
		t.Errorf("%d programs ran", n)
	}

	f.wantMuster(2, failing, "failures: 1, allowed: 0", "2 targets were not sent")
	if n := len(linesOf(t, record)); n != 1 {
		t.Errorf("%d programs ran before the budget halted it", n)
	}
	var list struct{ Commands []command }
	f.do("GET", "/v1/commands", "", http.StatusOK, &list)
	halted := list.Commands[0].ID
	f.wantMuster(0, []string{"commands", "list", "--state", "halted", "--label", "ticket=7", "--agent", "web-1", "--since", "1h"}, halted)
	f.wantMuster(0, []string{"commands", "resume", halted}, "OPEN")
	eventually(t, 10*time.Second, "it goes on and is halted again", func() bool { return len(linesOf(t, record)) == 2 })
	f.wantMuster(0, []string{"commands", "cancel", halted, "--reason", "enough"}, "CANCELLED")
	f.wantMuster(0, []string{"commands", "show", halted}, "CANCELLED", "enough", "failed 2, cancelled 1", "canary 1, batch 1")
	f.wantMuster(1, []string{"commands", "cancel", halted}, "ended")

	id := strings.TrimSpace(f.wantMuster(0, []string{"run", "web-1", "--detach", "--", "sh", "-c", "echo one; sleep 1; echo two"}))
	if out := f.wantMuster(0, []string{"commands", "output", id, "web-1", "--follow"}); out != "one\ntwo\n" {
		t.Errorf("followed output %q", out)
	}
	f.waitDone(id, 10*time.Second)
	if out := f.wantMuster(0, []string{"commands", "output", id, "web-1", "--range=-4"}); out != "two\n" {
		t.Errorf("the last four bytes %q", out)
	}

	f.wantMuster(0, []string{"agents", "maintenance", "web-2", "on"}, "ONLINE (maintenance)")
	f.wantMuster(3, []string{"run", "web-2", "--", "true"}, "queued 1")
	f.wantMuster(0, []string{"agents", "show", "web-2"}, "1 waiting, 0 in flight", "maintenance web-2 off")
	f.wantMuster(0, []string{"agents", "maintenance", "web-2", "off"})
	f.waitAllEnded()
}

// waitAllEnded returns when every command is DONE or CANCELLED.
func (f *fleet) waitAllEnded() {
	f.t.Helper()
	eventually(f.t, 10*time.Second, "all commands have ended", func() bool {
		var list struct{ Commands []command }
		f.do("GET", "/v1/commands?page_size=1000", "", http.StatusOK, &list)
		for _, cmd := range list.Commands {
			if cmd.EndTime == "" {
				return false
			}
		}
		return true
	})
}

// Ctrl-C leaves the command running and says how to find it.
func TestRunDetachesAtCtrlC(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	p := startProcess(t, "run", f.operator("run", "a1", "--", "sh", "-c", "echo run >>"+record+"; sleep 2"))
	eventually(t, 10*time.Second, "it runs", func() bool { return len(linesOf(t, record)) == 1 })
	p.signal(syscall.SIGINT)
	p.wantExit(5*time.Second, 130)
	var list struct{ Commands []command }
	f.do("GET", "/v1/commands", "", http.StatusOK, &list)
	if log := p.logTail(); !strings.Contains(log, list.Commands[0].ID+" goes on") {
		t.Errorf("it said %s", log)
	}
	if got := f.waitDone(list.Commands[0].ID, 10*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("got %+v", got)
	}
}
