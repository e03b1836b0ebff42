package agentd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// TestMain is also the agent of the tests that kill one: the test binary runs
// as an agent when it is told where.
func TestMain(m *testing.M) {
	if dir := os.Getenv("AGENTD_TEST_DIR"); dir != "" {
		if err := childAgent(dir, os.Getenv("AGENTD_TEST_ENDPOINT")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func childAgent(dir, endpoint string) error {
	if err := limitChild(dir); err != nil {
		return err
	}
	cfg := Config{Dir: dir, ID: "a", Allow: []string{"exec"}, StopGrace: time.Second}
	takeConfigs(&cfg)
	a, err := New(cfg)
	if err != nil {
		return err
	}
	mux := bus.NewMux()
	a.Register(mux)
	d := bus.NewDealer(bus.Config{}, mux, []string{endpoint}, bus.Null(), nil)
	a.Bind(d)
	go func() { _ = d.Run(context.Background()) }()
	if hold := os.Getenv("AGENTD_TEST_HOLD"); hold != "" {
		a.journal.faults.sync = holdAt(hold)
	}
	go tellGoroutines()
	return a.Run(context.Background())
}

// limitChild takes from this process what a test wants it to do without.
func limitChild(dir string) error {
	if n, _ := strconv.ParseUint(os.Getenv("AGENTD_TEST_NOFILE"), 10, 32); n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit of files: %w", err)
		}
	}
	if size := os.Getenv("AGENTD_TEST_TMPFS"); size != "" {
		// In a mount namespace of its own: the mount goes with this process.
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=700"); err != nil {
			return fmt.Errorf("tmpfs: %w", err)
		}
	}
	return limitConfigs()
}

// tellGoroutines prints how many there are at each SIGUSR1.
func tellGoroutines() {
	ask := make(chan os.Signal, 1)
	signal.Notify(ask, syscall.SIGUSR1)
	for range ask {
		fmt.Println(runtime.NumGoroutine())
	}
}

// holdAt stops the process for ever once the journal has, on disk, a record of
// a kind, before anything follows from it.
func holdAt(hold string) func(*os.File) error {
	kind, id, _ := strings.Cut(hold, ":") // of any command, without an id
	record := regexp.MustCompile(`"kind":"` + kind + `","seq":\d+,"id":"` + id)
	return func(f *os.File) error {
		err := f.Sync()
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(f.Name()), "journal"))
		if record.Match(b) {
			fmt.Println("held")
			select {}
		}
		return err
	}
}

func writeProgram(t *testing.T, path, content string) {
	t.Helper()
	syscall.ForkLock.RLock() // or a fork would keep it open, and it would be busy
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// child is an agent in a process of its own.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startChild(t *testing.T, dir, endpoint string, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "AGENTD_TEST_DIR="+dir, "AGENTD_TEST_ENDPOINT="+endpoint)...)
	if slices.ContainsFunc(env, mounts) {
		cmd.SysProcAttr = ownMounts()
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = t.Output()
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(c.kill)
	return c
}

// mounts says whether a variable makes the agent mount something.
func mounts(kv string) bool {
	return strings.HasPrefix(kv, "AGENTD_TEST_TMPFS=") || strings.HasPrefix(kv, "AGENTD_TEST_MOUNT=")
}

// ownMounts gives a process a mount namespace, with a user namespace where
// somebody else than root runs the tests.
func ownMounts() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// kill is kill -9.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln, "tcp://" + ln.Addr().String()
}

// longRun says who it is in a file, and is not to be run twice.
func longRun(t *testing.T, id string) (cmd *musterv1.Command, file string) {
	file = filepath.Join(t.TempDir(), "ran")
	t.Cleanup(func() { plugin.KillMarked("MUSTER_COMMAND_ID=" + id) })
	return shell(id, `echo $$ >>`+file+`; (setsid sleep 600 & sleep 600) & sleep 600`), file
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func ran(file string) (pids []int) {
	b, _ := os.ReadFile(file)
	for l := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(l)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processesOf counts what is left of a command.
func processesOf(t *testing.T, id string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if bytes.Contains(b, []byte("MUSTER_COMMAND_ID="+id+"\x00")) {
			n++
		}
	}
	return n
}

func TestC033C075AgentKilledWhileAProgramRuns(t *testing.T) {
	ln, endpoint := listen(t)
	c := serve(t, ln)
	dir := t.TempDir()
	id := fmt.Sprintf("kill-%d", os.Getpid())
	cmd, file := longRun(t, id)
	agent := startChild(t, dir, endpoint)
	c.send(t, cmd)
	c.waitFor(t, id, musterv1.Target_RUNNING)
	until(t, "the program", func() bool { return len(ran(file)) == 1 && processesOf(t, id) >= 4 })
	agent.kill()
	if processesOf(t, id) == 0 {
		t.Fatal("the program died with its agent: nothing is tested")
	}

	began := time.Now()
	startChild(t, dir, endpoint)
	end := c.end(t, id)
	if end.State != musterv1.Target_INTERRUPTED || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(began), end)
	}
	if n := processesOf(t, id); n != 0 {
		t.Errorf("%d processes of the program are left", n)
	}
	c.send(t, cmd, ping("later")) // a copy is not run again either
	c.end(t, "later")
	if n := len(ran(file)); n != 1 {
		t.Errorf("the program ran %d times", n)
	}
	if n := c.told(id); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

func TestC033IdempotentRunsAgain(t *testing.T) {
	ln, endpoint := listen(t)
	c := serve(t, ln)
	dir := t.TempDir()
	id := fmt.Sprintf("again-%d", os.Getpid())
	cmd, file := longRun(t, id)
	cmd.Idempotent = true
	agent := startChild(t, dir, endpoint)
	c.send(t, cmd)
	until(t, "the program", func() bool { return len(ran(file)) == 1 })
	first := ran(file)[0]
	agent.kill()
	agent = startChild(t, dir, endpoint)
	until(t, "the second run", func() bool { return len(ran(file)) == 2 })
	// A zombie, which is dead, has no environment.
	if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", first)); len(b) > 0 {
		t.Error("the first run still lives beside the second")
	}
	agent.kill()
}

// The agent dies in the moment between the journal's word and what follows it.
func TestC033KilledBetweenTheSteps(t *testing.T) {
	for _, s := range []struct {
		name  string
		at    string // the record that is on disk
		busy  bool   // all slots are taken when it comes
		state musterv1.Target_State
		ran   int
	}{
		{"received", "received:x", true, musterv1.Target_SUCCEEDED, 1},
		{"started", "started:x", true, musterv1.Target_INTERRUPTED, 0},
		{"received and started", "received:x", false, musterv1.Target_INTERRUPTED, 0},
		{"ended", "ended:x", false, musterv1.Target_SUCCEEDED, 1},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			ln, endpoint := listen(t)
			c := serve(t, ln)
			dir := t.TempDir()
			file := filepath.Join(t.TempDir(), "ran")
			agent := startChild(t, dir, endpoint, "AGENTD_TEST_HOLD="+s.at)
			for i := 0; s.busy && i < 4; i++ {
				c.send(t, shell(fmt.Sprint("before-", i), "sleep 1"))
			}
			c.send(t, shell("x", "echo $$ >>"+file))
			if l, err := agent.out.ReadString('\n'); err != nil || l != "held\n" {
				t.Fatalf("the agent said %q, %v", l, err)
			}
			agent.kill()
			if c.told("x") != 0 {
				t.Error("the end was told before it was on disk")
			}
			startChild(t, dir, endpoint)
			if end := c.end(t, "x"); end.State != s.state {
				t.Errorf("got %v", end)
			}
			if n := len(ran(file)); n != s.ran {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// Results made while no coordinator was there survive kill -9 of the agent.
func TestC046ResultsOutliveCoordinatorAndAgent(t *testing.T) {
	ln, endpoint := listen(t)
	addr := ln.Addr().String()
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "ran")
	var c *fakeCoordinator
	var agent *child
	t.Run("first coordinator", func(t *testing.T) { // ends with the subtest
		c = serve(t, ln)
		c.setSilent(true)
		agent = startChild(t, dir, endpoint)
		for i := range 20 {
			c.send(t, shell(fmt.Sprint(i), fmt.Sprintf("sleep 0.2; echo %d >>%s; echo out-%d", i, file, i)))
		}
		c.waitFor(t, "19", musterv1.Target_RECEIVED)
	})
	// The subtest's end killed the first agent; what it had not done goes on now.
	agent = startChild(t, dir, endpoint)
	until(t, "all the programs", func() bool {
		b, _ := os.ReadFile(file)
		return bytes.Count(b, []byte("\n")) >= 16 // four may have been interrupted
	})
	agent.kill()
	startChild(t, dir, endpoint)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c = serve(t, ln)
	for i := range 20 {
		end := c.end(t, fmt.Sprint(i))
		if end.State == musterv1.Target_INTERRUPTED {
			continue
		}
		if out := c.out(fmt.Sprint(i) + "STDOUT"); end.State != musterv1.Target_SUCCEEDED || out != fmt.Sprintf("out-%d\n", i) {
			t.Errorf("got %v, output %q", end, out)
		}
	}
	b, _ := os.ReadFile(file)
	for i := range 20 {
		if n := bytes.Count(b, fmt.Appendf(nil, "%d\n", i)); n > 2 { // "1\n" is in "11\n" too
			t.Errorf("%d ran %d times", i, n)
		}
	}
}

func TestC057SecondProcess(t *testing.T) {
	_, endpoint := listen(t)
	dir := t.TempDir()
	first := startChild(t, dir, endpoint)
	until(t, "the lock", func() bool { b, _ := os.ReadFile(filepath.Join(dir, "lock")); return len(b) > 0 })
	// The first one may be stopped: it still holds the folder.
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := exec.Command(os.Args[0])
	second.Env = append(os.Environ(), "AGENTD_TEST_DIR="+dir, "AGENTD_TEST_ENDPOINT="+endpoint)
	var said strings.Builder
	second.Stderr = &said
	err := second.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(said.String(), dir) {
		t.Errorf("got %v: %s", err, said.String())
	}
	first.kill()
	third, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatalf("after kill -9: %v", err)
	}
	third.Close()
}
