package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The whole folder of an agent is copied to another host, and both are started.
// The conflict is shown with both addresses, each command runs on one machine, the
// copy comes back slowly, and with an id of its own it is an agent like any other.
func TestC056ClonedFolder(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	f := startFleetAt(t, n.here, "--insecure-southbound")
	f.startAgent("a1", "--insecure-southbound", "--tag", "on=first")
	f.waitOnline("a1")
	before := f.submit(commandBody([]string{"a1"}, "true"))
	f.waitDone(before, 10*time.Second)
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(f.agentDir("a1"))); err != nil {
		t.Fatal(err)
	}
	start := func(dir, flags string) *process {
		return n.start("copy", fmt.Sprintf("muster-agentd --coordinator %s --data '%s' --allow exec --insecure-southbound --tag on=copy %s", f.endpoint, dir, flags))
	}
	clone := start(copied, "")
	eventually(t, time.Minute, "the conflict is shown", func() bool { return f.agent("a1").Conflict.Address != "" })
	if c := f.agent("a1").Conflict; !strings.HasPrefix(c.Address, n.here+":") || !strings.HasPrefix(c.RefusedAddress, n.there+":") {
		t.Errorf("conflict %+v", c)
	}
	record := filepath.Join(t.TempDir(), "record")
	commands := map[string]string{}
	for i := range 20 {
		line := fmt.Sprint("line-", i)
		commands[line] = f.submit(commandBody([]string{"a1"}, `echo "$2" >>"$1"`, record, line))
		f.waitDone(commands[line], 20*time.Second)
		<-time.After(clonesFor / 20)
	}
	f.wantOnce(record, commands, "a1", 20*time.Second)
	refusals := strings.Count(readFile(t, clone.log), `msg="registration refused"`)
	if most := 2 + int(clonesFor/(20*time.Second)); refusals < 1 || refusals > most {
		t.Errorf("the copy was refused %d times in %v, want at most %d", refusals, clonesFor, most)
	}
	if log := readFile(t, clone.log); !strings.Contains(log, "--id") || !strings.Contains(log, n.here) {
		t.Error("the copy is not told what to do")
	}

	clone.signal(15)
	clone.wantExit(10*time.Second, 0)
	start(filepath.Join(t.TempDir(), "fresh"), "--id a2")
	f.waitOnline("a1", "a2")
	f.wantEcho("a2")
	if got := f.targets(before); len(got) != 1 || got["a1"].State != "SUCCEEDED" {
		t.Errorf("the history of the first: %+v", got)
	}
}
