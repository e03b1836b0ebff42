package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// configStatus is where a config stands on an agent.
type configStatus struct {
	Kind    string
	Name    string
	Status  string
	Version int
	Running int `json:"running_version"`
	Wanted  int `json:"wanted_version"`
}

// configOn tells where a config stands on an agent.
func (f *fleet) configOn(agent, name string) (st configStatus) {
	f.t.Helper()
	var list struct{ Configs []configStatus }
	f.do("GET", "/v1/agents/"+agent+"/configs", "", http.StatusOK, &list)
	for _, st := range list.Configs {
		if st.Name == name {
			return st
		}
	}
	return configStatus{}
}

// putConfig adds a version of a config whose program counts its reloads.
func (f *fleet) putConfig(name, content, reloads string) {
	f.t.Helper()
	file := filepath.Join(f.dir, "content")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	reload, err := json.Marshal([]string{"sh", "-c", "echo reload >> " + reloads})
	if err != nil {
		f.t.Fatal(err)
	}
	f.wantMuster(0, []string{"configs", "put", "--reload-cmd", string(reload), name, file})
}

// bindFleet wants a version of a config everywhere.
func (f *fleet) bindFleet(name string, version int) {
	f.t.Helper()
	f.wantMuster(0, []string{"configs", "bind", "--fleet", "--yes", "--version", strconv.Itoa(version), name})
}

// The coordinator is killed right behind the agent's rename, again and again:
// each time the status is right soon after, and no restart of either side
// reloads anything (C089). With a wiped store nothing is taken away, and a config
// made again by that name is another, even with the same number.
func TestC092ConfigsOutliveTheCoordinator(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	agent := f.startAgent("a1", "--allow", "hooks")
	f.waitOnline("a1")
	live := filepath.Join(f.agentDir("a1"), "configs", "app")
	reloads := filepath.Join(f.dir, "reloads")
	const versions = 3
	right := func(n int) func() bool {
		want := configStatus{"PIPELINE", "app", "APPLIED", n, n, n}
		return func() bool { return f.configOn("a1", "app") == want }
	}
	for n := 1; n <= versions; n++ {
		content := fmt.Sprintf("content %d\n", n)
		f.putConfig("app", content, reloads)
		f.bindFleet("app", n)
		f.waitHeld("app", content, "a1")
		f.coordinator.kill()
		f.startCoordinator()
		eventually(t, 20*time.Second, fmt.Sprintf("version %d is told to be applied", n), right(n))
	}
	f.wantMuster(0, []string{"configs", "put", "other", filepath.Join(f.dir, "content")})
	agent.kill()
	f.startAgent("a1", "--allow", "hooks")
	f.waitOnline("a1")
	eventually(t, 20*time.Second, "the same after a restart of the agent", right(versions))
	if n := len(linesOf(t, reloads)); n != versions {
		t.Errorf("%d reloads of %d versions", n, versions)
	}

	f.coordinator.kill()
	if err := os.RemoveAll(f.dataFolder()); err != nil {
		t.Fatal(err)
	}
	f.startCoordinator()
	f.waitOnline("a1")
	if st, want := f.configOn("a1", "app"), (configStatus{"PIPELINE", "app", "APPLIED", versions, versions, 0}); st != want {
		t.Errorf("to an empty store it stands as %v, want %v", st, want)
	}
	for n := 1; n <= versions; n++ {
		f.putConfig("app", fmt.Sprintf("another content %d\n", n), reloads)
	}
	if got, want := f.held("a1", "app"), fmt.Sprintf("content %d\n", versions); got != want {
		t.Errorf("the file is %q, want %q as it was", got, want)
	}
	f.bindFleet("app", versions)
	eventually(t, 20*time.Second, "the new content is in place", func() bool {
		return f.held("a1", "app") == fmt.Sprintf("another content %d\n", versions) && right(versions)()
	})
	f.wantMuster(0, []string{"configs", "delete", "--yes", "app"})
	eventually(t, 20*time.Second, "the file is gone", func() bool { _, err := os.Stat(live); return os.IsNotExist(err) })
}
