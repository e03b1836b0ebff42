package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A foreign agent, in Python over libzmq, registers, gets commands and returns
// their results, also after the coordinator has started again. It holds configs,
// inline ones and ones that it has to fetch.
func TestPythonAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	protos, err := filepath.Glob("../../proto/muster/v1/*.proto")
	if err != nil || len(protos) == 0 {
		t.Fatal(protos, err)
	}
	protoc := exec.Command("protoc", append([]string{"-I", "../../proto", "--python_out", dir}, protos...)...)
	if out, err := protoc.CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v: %s", err, out)
	}
	f := startFleet(t)
	cmd := exec.Command("/usr/bin/python3", "../../examples/agent.py", "--coordinator", f.endpoint, "--id", "python-1", "--config-root", filepath.Join(dir, "configs"))
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+dir, "PYTHONUNBUFFERED=1")
	startProcess(t, "python-1", cmd)
	f.waitOnline("python-1")
	f.wantEcho("python-1")

	f.coordinator.kill()
	f.startCoordinator()
	f.waitOnline("python-1")
	f.wantEcho("python-1")
	for version, content := range []string{"small\n", strings.Repeat("large\n", 100_000)} {
		source := filepath.Join(dir, "content")
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f.wantMuster(0, []string{"configs", "put", "app", source})
		f.bindFleet("app", version+1)
		eventually(t, 20*time.Second, "the config on python-1", func() bool {
			return f.configOn("python-1", "app") == configStatus{"PIPELINE", "app", "APPLIED", version + 1, version + 1, version + 1}
		})
		if got := readFile(t, filepath.Join(dir, "configs", "app")); got != content {
			t.Errorf("version %d is in place as %d bytes, want %d", version+1, len(got), len(content))
		}
	}
	if took := f.pingAll([]string{"python-1"}); took > time.Second {
		t.Errorf("ping took %v", took)
	}
	failing := f.submit(commandBody([]string{"python-1"}, "exit 7"))
	if got := f.waitDone(failing, 10*time.Second)["python-1"]; got.State != "FAILED" || got.ExitCode == nil || *got.ExitCode != 7 {
		t.Errorf("got %+v", got)
	}
}

// wantEcho sends a word to an agent and finds it in the output.
func (f *fleet) wantEcho(agent string) {
	f.t.Helper()
	mark := nonce()
	id := f.submit(commandBody([]string{agent}, `echo "$1"`, mark))
	if got := f.waitDone(id, 20*time.Second)[agent]; got.State != "SUCCEEDED" {
		f.t.Fatalf("got %+v", got)
	}
	if got := f.stdout(id, agent); got != mark+"\n" {
		f.t.Fatalf("stdout %q, want %q", got, mark)
	}
}
