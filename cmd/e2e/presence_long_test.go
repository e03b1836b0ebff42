//go:build long

package e2e

import (
	"strings"
	"testing"
	"time"
)

// With the default of five minutes.
func TestC051StoppedCoordinatorTakesNobodyOfflineByDefault(t *testing.T) {
	t.Parallel()
	showPauses(t, 200, 15*time.Minute, 1, 270*time.Second)
}

// Ten pauses that are just too short to take anybody offline.
func TestC051TenShortStopsTakeNobodyOffline(t *testing.T) {
	t.Parallel()
	showPauses(t, 200, 27*time.Second, 10, 8*time.Second, "--heartbeat", "1s", "--offline-after", "9s")
}

// An agent is killed after the disk of the coordinator has gone read-only: it is
// OFFLINE in time, and the log says that this could not be written.
func TestC053OfflineDetectionOnAReadOnlyDisk(t *testing.T) {
	const after = 5 * time.Second
	f := newFleet(t, "--heartbeat", "1s", "--offline-after", after.String())
	mount, unmount, fail, _ := brittleDisk(f)
	mount()
	t.Cleanup(unmount)
	f.startCoordinator()
	a := f.startAgent("a1")
	f.waitOnline("a1")
	fail()
	a.kill()
	f.wantOfflineIn(time.Now(), after, "a1")
	if log := readFile(t, f.coordinator.log); !strings.Contains(log, "agent status not stored") {
		t.Error("the log does not say that the status is not stored")
	}
	f.coordinator.kill() // before its disk goes
}
