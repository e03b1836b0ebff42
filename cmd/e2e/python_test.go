package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A foreign agent, in Python over libzmq, registers, gets commands and returns
// their results, also after the coordinator has started again.
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
	cmd := exec.Command("/usr/bin/python3", "../../examples/agent.py", "--coordinator", f.endpoint, "--id", "python-1")
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+dir, "PYTHONUNBUFFERED=1")
	startProcess(t, "python-1", cmd)
	f.waitOnline("python-1")
	f.wantEcho("python-1")

	f.coordinator.kill()
	f.startCoordinator()
	f.waitOnline("python-1")
	f.wantEcho("python-1")
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
