package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mountTmpfs mounts a file system of its own at dir, until the test ends.
func mountTmpfs(t *testing.T, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	asRoot(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("%s,mode=0700,uid=%d", options, os.Geteuid()), "muster-test", dir)
	t.Cleanup(func() { asRoot(t, "umount", "-l", dir) })
}

// asRoot runs a program, through sudo if the test has not the rights.
func asRoot(t *testing.T, argv ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		argv = append([]string{"sudo", "-n"}, argv...)
	}
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// fillDisk writes a file until nothing more goes in.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// problem is an answer that refuses.
type problem struct{ Code, Detail string }

func (f *fleet) refusal(body string) (status int, p problem) {
	f.t.Helper()
	status, answer, err := f.ask("POST", "/v1/commands", body)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal(answer, &p); err != nil {
		f.t.Fatalf("%d: %v in %s", status, err, answer)
	}
	return status, p
}

func TestC107DiskFullOnTheCoordinator(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "--heartbeat", "500ms", "--offline-after", "4s")
	mountTmpfs(t, f.dataFolder(), "size=24m")
	f.startCoordinator()
	f.startAgent("a1")
	f.waitOnline("a1")
	record, gate := filepath.Join(t.TempDir(), "record"), filepath.Join(t.TempDir(), "gate")
	f.waitDone(f.submit(commandBody([]string{"a1"}, `echo first >>"$1"`, record)), 10*time.Second)
	const output = 600_000
	held := f.submit(commandBody([]string{"a1"}, `until [ -e "$2" ]; do sleep 0.1; done; echo held >>"$1"; head -c 600000 /dev/zero`, record, gate))
	f.waitState(held, "a1", "RUNNING", 10*time.Second)

	filler := filepath.Join(f.dataFolder(), "filler")
	fillDisk(t, filler)
	large := strings.Replace(commandBody([]string{"a1"}, `echo refused >>"$1"`, record), `"argv"`, `"stdin":"`+strings.Repeat("x", 100_000)+`","argv"`, 1)
	for range 5 {
		status, p := f.refusal(large)
		if status != http.StatusInsufficientStorage || p.Code != "DISK_FULL" || !strings.Contains(p.Detail, "no space left") {
			t.Errorf("POST on a full disk: %d %+v", status, p)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the program ends", func() bool { return len(linesOf(t, record)) == 2 })
	for full := time.After(6 * time.Second); full != nil; { // longer than --offline-after
		select {
		case <-full:
			full = nil
		case <-time.After(250 * time.Millisecond):
			if got := f.statuses()["a1"]; got != "ONLINE" {
				t.Fatalf("the agent is %s although it beats", got)
			}
			if got := f.targets(held)["a1"].State; got != "RUNNING" {
				t.Fatalf("the result is stored on a full disk: %s", got)
			}
		}
	}

	// Killed and started again while the disk is full.
	f.coordinator.kill()
	f.startCoordinator()
	var list struct{ Commands []command }
	f.do("GET", "/v1/commands", "", http.StatusOK, &list)
	if len(list.Commands) != 2 {
		t.Errorf("%d commands after a restart", len(list.Commands))
	}
	if status, p := f.refusal(large); status != http.StatusInsufficientStorage {
		t.Errorf("POST after a restart on a full disk: %d %+v", status, p)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	var next string
	eventually(t, 10*time.Second, "a command is taken", func() bool {
		status, answer, err := f.ask("POST", "/v1/commands", commandBody([]string{"a1"}, `echo next >>"$1"`, record))
		if err == nil && status == http.StatusAccepted {
			next = idOf(t, answer)
		}
		return next != ""
	})
	if got := f.waitDone(next, 10*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("the command after it: %+v", got)
	}
	if got := f.waitDone(held, 10*time.Second)["a1"]; got.State != "SUCCEEDED" || len(f.stdout(held, "a1")) != output {
		t.Errorf("the result that waited: %+v", got)
	}
	t.Logf("normal %v after there was room", time.Since(freed))
	if got := strings.Join(linesOf(t, record), " "); got != "first held next" {
		t.Errorf("programs that ran: %s", got)
	}
	f.wantSoundStore()
}

// wantSoundStore stops the coordinator and checks its store.
func (f *fleet) wantSoundStore() {
	f.t.Helper()
	f.coordinator.signal(syscall.SIGTERM)
	f.coordinator.wantExit(10*time.Second, 0)
	if out, errOut, code := f.muster("store", "check", "--data", f.dataFolder()); code != 0 {
		f.t.Errorf("store check: exit %d\n%s%s", code, out, errOut)
	}
}

func TestC108ReadOnlyAtStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	mountTmpfs(t, f.dataFolder(), "size=24m")
	asRoot(t, "mount", "-o", "remount,ro", f.dataFolder())
	f.wantRefusedStart(f.dataFolder(), "read-only")
	asRoot(t, "mount", "-o", "remount,rw", f.dataFolder())
	f.startCoordinator()
	f.coordinator.kill()
	asRoot(t, "mount", "-o", "remount,ro", f.dataFolder())
	f.wantRefusedStart(f.dataFolder(), "read-only")
	asRoot(t, "mount", "-o", "remount,rw", f.dataFolder())
	f.startCoordinator()
	f.wantSoundStore()
}

// wantRefusedStart starts a coordinator that must end within 5 s with one line
// that has these words.
func (f *fleet) wantRefusedStart(words ...string) {
	f.t.Helper()
	f.wantEnd(startProcess(f.t, "refused", exec.Command(filepath.Join(bin, "muster"), f.upArgs()...)), 5*time.Second, words...)
}

func (f *fleet) wantEnd(p *process, within time.Duration, words ...string) {
	f.t.Helper()
	p.wantExit(within, 1)
	last := ""
	for line := range strings.Lines(p.logTail()) {
		last = line
	}
	for _, word := range words {
		if !strings.Contains(last, word) {
			f.t.Errorf("it ended with %q, and no word of %q", last, word)
		}
	}
	if strings.Contains(p.logTail(), "goroutine ") {
		f.t.Errorf("it ended with a dump:\n%s", p.logTail())
	}
}

// TestC108StartedWithoutPermission starts a coordinator as a user who may not
// write the data folder, or the file in it.
func TestC108StartedWithoutPermission(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	f := newFleet(t)
	open := filepath.Join(os.TempDir(), nonce()) // everybody may go there, unlike to the test's own folder
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(open) })
	f.dir = open
	f.startCoordinator()
	f.coordinator.kill()
	program := filepath.Join(open, "muster")
	if err := os.Link(filepath.Join(bin, "muster"), program); err != nil {
		t.Fatal(err)
	}
	refused := func(words ...string) {
		t.Helper()
		cmd := exec.Command(program, f.upArgs()...)
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		f.wantEnd(startProcess(t, "refused", cmd), 5*time.Second, words...)
	}
	file := filepath.Join(f.dataFolder(), "muster.db")
	asRoot(t, "chmod", "0500", f.dataFolder())
	asRoot(t, "chmod", "0400", file)
	refused(f.dataFolder(), "permission denied")
	asRoot(t, "chmod", "0777", f.dataFolder())
	refused(file, "permission denied")
}
