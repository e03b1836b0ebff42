//go:build long

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestC108ReadOnlyWhileRunning lets a real file system go read-only, as it does
// when its disk fails.
func TestC108ReadOnlyWhileRunning(t *testing.T) {
	f := newFleet(t, "--heartbeat", "500ms", "--offline-after", "4s")
	mount, unmount, fail, image := brittleDisk(f)
	mount()
	t.Cleanup(unmount)
	f.startCoordinator()
	f.startAgent("a1")
	f.waitOnline("a1")
	gate := filepath.Join(t.TempDir(), "gate")
	held := f.submit(commandBody([]string{"a1"}, `until [ -e "$1" ]; do sleep 0.1; done; echo done`, gate))
	f.waitState(held, "a1", "RUNNING", 10*time.Second)

	fail()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for readOnly := time.After(6 * time.Second); readOnly != nil; { // longer than --offline-after
		select {
		case <-readOnly:
			readOnly = nil
		case <-time.After(250 * time.Millisecond):
			status, p := f.refusal(commandBody([]string{"a1"}, "true"))
			if status != http.StatusServiceUnavailable || p.Code != "STORE_UNAVAILABLE" || !strings.Contains(p.Detail, "read-only") {
				t.Fatalf("POST on a read-only disk: %d %+v", status, p)
			}
			if got := f.statuses()["a1"]; got != "ONLINE" {
				t.Fatalf("the agent is %s although it beats", got)
			}
			if got := f.targets(held)["a1"].State; got != "RUNNING" {
				t.Fatalf("the result is stored on a read-only disk: %s", got)
			}
		}
	}
	f.coordinator.kill()
	f.wantRefusedStart(f.dataFolder(), "read-only")

	unmount()
	asRoot(t, "sh", "-c", `e2fsck -fy "$0" || [ $? = 1 ]`, image) // 1: repaired
	mount()
	f.startCoordinator()
	if got := f.waitDone(held, 30*time.Second)["a1"]; got.State != "SUCCEEDED" || f.stdout(held, "a1") != "done\n" {
		t.Errorf("the result that waited: %+v", got)
	}
	f.wantSoundStore()
}

// brittleDisk makes a file system for the coordinator's data folder that goes
// read-only when it is told to.
func brittleDisk(f *fleet) (mount, unmount, fail func(), image string) {
	t := f.t
	t.Helper()
	image = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	asRoot(t, "mkfs.ext4", "-q", "-F", "-E", fmt.Sprintf("root_owner=%d:%d", os.Geteuid(), os.Getegid()), image)
	if err := os.Mkdir(f.dataFolder(), 0o700); err != nil {
		t.Fatal(err)
	}
	mount = func() { asRoot(t, "mount", "-o", "loop,errors=remount-ro", image, f.dataFolder()) }
	unmount = func() { asRoot(t, "umount", f.dataFolder()) }
	fail = func() {
		asRoot(t, "sh", "-c", `echo 1 >/sys/fs/ext4/$(basename $(findmnt -no SOURCE "$0"))/trigger_fs_error`, f.dataFolder())
	}
	return mount, unmount, fail, image
}
