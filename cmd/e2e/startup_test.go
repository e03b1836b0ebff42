package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (f *fleet) storeFile() string { return filepath.Join(f.dataFolder(), "muster.db") }

// startSecond starts another coordinator on the same data folder, with ports of
// its own.
func (f *fleet) startSecond() (p *process, ports []string) {
	f.t.Helper()
	other := *f
	for range 2 {
		ports = append(ports, fmt.Sprintf("127.0.0.1:%d", freePort(f.t)))
	}
	other.endpoint, other.url = "tcp://"+ports[0], "http://"+ports[1]
	return startProcess(f.t, "second", exec.Command(filepath.Join(bin, "muster"), other.upArgs()...)), ports
}

func TestC110EmptyStoreFileIsRefused(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.coordinator.kill()
	if err := os.Truncate(f.storeFile(), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first refusal must not make it pass
		f.wantRefusedStart(f.storeFile(), "empty", "move it away")
	}
	if size := sizeOf(t, f.storeFile()); size != 0 {
		t.Errorf("the file has %d bytes now", size)
	}
}

// Without its store file, and in an empty folder, a coordinator starts, says so,
// and knows its agents again when they register.
func TestC110MissingStoreFileIsTold(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	f.waitDone(f.submit(commandBody([]string{"a1"}, "true")), 10*time.Second)
	for name, remove := range map[string]func() error{
		"file":   func() error { return os.Remove(f.storeFile()) },
		"folder": func() error { return os.RemoveAll(f.dataFolder()) },
	} {
		f.coordinator.kill()
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		f.startCoordinator()
		if log := f.coordinator.logTail(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, f.storeFile()) {
			t.Errorf("without its %s it says\n%s", name, log)
		}
		var list struct{ Commands []command }
		f.do("GET", "/v1/commands", "", http.StatusOK, &list)
		if len(list.Commands) != 0 {
			t.Errorf("without its %s there are %d commands", name, len(list.Commands))
		}
		f.waitOnline("a1")
		if got := f.waitDone(f.submit(commandBody([]string{"a1"}, "true")), 10*time.Second)["a1"]; got.State != "SUCCEEDED" {
			t.Errorf("without its %s: %+v", name, got)
		}
	}
}

func TestC111SecondCoordinatorIsRefused(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for _, stopped := range []bool{false, true} {
		if stopped {
			f.coordinator.signal(syscall.SIGSTOP)
		}
		second, ports := f.startSecond()
		for waiting := true; waiting; {
			select {
			case <-second.gone:
				waiting = false
			case <-time.After(100 * time.Millisecond):
				for _, port := range ports {
					if conn, err := net.Dial("tcp", port); err == nil {
						conn.Close()
						t.Fatalf("it listens on %s without the lock", port)
					}
				}
			}
		}
		f.wantEnd(second, 10*time.Second, f.storeFile(), "coordinator running")
	}
	f.coordinator.signal(syscall.SIGCONT)
	f.do("GET", "/v1/agents", "", http.StatusOK, nil)
}

// A backup tool that has the file locked for 3 s is waited for; one that keeps
// it is not.
func TestC111LockOfABackup(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.coordinator.kill()
	file, err := unix.Open(f.storeFile(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(file, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	refused, _ := f.startSecond()
	f.wantEnd(refused, 10*time.Second, f.storeFile())
	t.Logf("refused after %v", time.Since(start))

	start = time.Now()
	time.AfterFunc(3*time.Second, func() { unix.Close(file) })
	f.startCoordinator()
	if took := time.Since(start); took < 3*time.Second {
		t.Errorf("it started after %v, before the lock was free", took)
	}
}

func TestC115StartWithAnUnusableSetting(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.coordinator.kill()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	before := f.dataFiles()
	for name, c := range map[string]struct {
		agents, http string
		flags, words []string
	}{
		"agents' port taken":       {agents: "tcp://" + port, words: []string{"--listen-agents", port}},
		"REST port taken":          {http: port, words: []string{"--listen-http", port}},
		"one port for both":        {agents: f.endpoint, http: strings.TrimPrefix(f.endpoint, "tcp://"), words: []string{"--listen-http"}},
		"agents' host unknown":     {agents: "tcp://nowhere.invalid:7600", words: []string{"--listen-agents", "nowhere.invalid"}},
		"REST host unknown":        {http: "nowhere.invalid:7680", words: []string{"--listen-http", "nowhere.invalid"}},
		"agents' endpoint unknown": {agents: "udp://127.0.0.1:7600", words: []string{"--listen-agents", "udp"}},
		"no port":                  {http: "127.0.0.1", words: []string{"--listen-http", "127.0.0.1"}},
		"setting unknown":          {flags: []string{"--nonsense", "1"}, words: []string{"nonsense"}},
		"setting without sense":    {flags: []string{"--heartbeat", "soon"}, words: []string{"heartbeat"}},
		"folder not to be made":    {flags: []string{"--data", "/proc/nowhere/muster"}, words: []string{"--data", "/proc/nowhere/muster"}},
		"folder a file":            {flags: []string{"--data", f.storeFile()}, words: []string{"--data", f.storeFile()}},
	} {
		other := *f
		other.upFlags = c.flags
		if c.agents != "" {
			other.endpoint = c.agents
		}
		if c.http != "" {
			other.url = "http://" + c.http
		}
		p := startProcess(t, "refused", exec.Command(filepath.Join(bin, "muster"), other.upArgs()...))
		f.wantEnd(p, 5*time.Second, c.words...)
		if t.Failed() {
			t.Fatal(name)
		}
		for _, address := range []string{f.endpoint, f.url} {
			_, address, _ = strings.Cut(address, "://")
			if conn, err := net.Dial("tcp", address); err == nil {
				conn.Close()
				t.Errorf("%s: a listener is left on %s", name, address)
			}
		}
		if after := f.dataFiles(); after != before {
			t.Errorf("%s: the data folder was %s and is %s", name, before, after)
		}
	}
}

// dataFiles tells names, modes, sizes and times of what is in the data folder.
func (f *fleet) dataFiles() string {
	f.t.Helper()
	entries, err := os.ReadDir(f.dataFolder())
	if err != nil {
		f.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			f.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s %d %v\n", info.Name(), info.Mode(), info.Size(), info.ModTime())
	}
	return b.String()
}

func TestC115KeyFileThatOthersMayRead(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.coordinator.kill()
	key := filepath.Join(f.dataFolder(), "curve.key")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	f.wantRefusedStart(key, "0644")
}

// A data folder that does not exist is made, for nobody else to read.
func TestC115MissingDataFolderIsMade(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.dir = filepath.Join(f.dir, "deep", "er")
	f.startCoordinator()
	info, err := os.Stat(f.dataFolder())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", info, err)
	}
}
