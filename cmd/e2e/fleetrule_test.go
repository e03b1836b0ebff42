package e2e

import (
	"syscall"
	"testing"
	"time"
)

// The rule of the fleet, and forgetting, by their flags: what waits for an agent
// that is stopped is cancelled at once, and the agent is gone after a while.
func TestOfflineCommandsAndForgetAfter(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--offline-commands", "cancel", "--forget-after", "4s")
	a := f.startAgent("a1")
	f.startAgent("a2")
	f.waitOnline("a1", "a2")
	f.do("PUT", "/v1/agents/a1/maintenance", `{"maintenance":true}`, 200, nil)
	id := f.submit(commandBody([]string{"a1"}, "true"))
	if got := f.targets(id)["a1"].State; got != "QUEUED" {
		t.Fatalf("under maintenance it is %s", got)
	}
	a.signal(syscall.SIGTERM)
	a.wantExit(10*time.Second, 0)
	if got := f.waitDone(id, 3*time.Second)["a1"]; got.State != "CANCELLED" || got.Reason != "agent offline" {
		t.Errorf("got %+v", got)
	}
	eventually(t, 10*time.Second, "a1 is forgotten", func() bool { return len(f.statuses()) == 1 })
	if got := f.targets(id)["a1"]; got.State != "CANCELLED" {
		t.Errorf("its history: %+v", got)
	}
	f.startAgent("a1")
	f.waitOnline("a1", "a2")
}
