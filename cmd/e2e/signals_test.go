package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Signals that mean nothing to a service change nothing, however many come.
func TestC030OddSignals(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	commands := map[string]string{}
	start := time.Now()
	for n := 0; time.Since(start) < oddSignalsFor; n++ {
		line := fmt.Sprint("line-", n)
		commands[line] = f.submit(commandBody([]string{"a1"}, `echo "$2" >>"$1"`, record, line))
		for _, sig := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGURG, syscall.SIGCONT, syscall.SIGCHLD} {
			f.coordinator.signal(sig)
			a.signal(sig)
		}
		<-time.After(10 * time.Millisecond) // the rate is the case
	}
	f.wantOnce(record, commands, "a1", 30*time.Second)
	f.coordinator.signal(syscall.SIGHUP) // the terminal is closed: a clean end, as at SIGTERM
	f.coordinator.wantExit(5*time.Second, 0)
	a.signal(syscall.SIGHUP)
	a.wantExit(5*time.Second, 0)
}

// Who reads the log goes away after a line: the log ends, the service goes on.
func TestC030LogPipeIsClosed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.logTo = oneLine(t)
	f.startCoordinator()
	f.logTo = oneLine(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	commands := map[string]string{}
	for n := range 100 {
		line := fmt.Sprint("line-", n)
		commands[line] = f.submit(commandBody([]string{"a1"}, `echo "$2" >>"$1"`, record, line))
	}
	f.wantOnce(record, commands, "a1", 30*time.Second)
	// What we ignore, the programs that we start do not.
	id := f.submit(commandBody([]string{"a1"}, `kill -PIPE $$; echo survived`))
	if got := f.waitDone(id, 10*time.Second)["a1"]; got.State != "FAILED" || got.Signal != "SIGPIPE" {
		t.Errorf("a program that gets SIGPIPE: %+v", got)
	}
	for _, p := range []*process{f.coordinator, a} {
		p.signal(syscall.SIGTERM)
		p.wantExit(10*time.Second, 0)
	}
}

// oneLine is a pipe whose reader goes away after a line.
func oneLine(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	go func() {
		defer r.Close()
		bufio.NewReader(r).ReadString('\n')
	}()
	return w
}

// A closed terminal does not end what runs under nohup.
func TestC030Nohup(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := startProcess(t, "nohup", exec.Command("nohup", append([]string{filepath.Join(bin, "muster")}, f.upArgs()...)...))
	eventually(t, 20*time.Second, "it serves", func() bool { _, _, err := f.ask("GET", "/readyz", ""); return err == nil })
	p.signal(syscall.SIGHUP)
	<-time.After(500 * time.Millisecond)
	if status, _, err := f.ask("GET", "/readyz", ""); err != nil || status != 200 {
		t.Errorf("after SIGHUP: %d %v", status, err)
	}
	p.signal(syscall.SIGTERM)
	p.wantExit(5*time.Second, 0)
}
