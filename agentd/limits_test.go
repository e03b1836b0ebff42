package agentd

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// descriptors counts the open files of a process.
func (c *child) descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func (c *child) goroutines(t *testing.T) int {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	l, err := c.out.ReadString('\n')
	n, aerr := strconv.Atoi(strings.TrimSpace(l))
	if err != nil || aerr != nil {
		t.Fatalf("the agent said %q, %v", l, err)
	}
	return n
}

// zombies counts the defunct children of a process.
func (c *child) zombies(t *testing.T) (n int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		b, _ := os.ReadFile(file)
		if i := bytes.LastIndexByte(b, ')'); i >= 0 && strings.HasPrefix(string(b[i+1:]), fmt.Sprintf(" Z %d ", c.cmd.Process.Pid)) {
			n++
		}
	}
	return n
}

func TestC076NothingIsLeftOfPrograms(t *testing.T) {
	each := 50
	if long {
		each = 500
	}
	ln, endpoint := listen(t)
	c := serve(t, ln)
	agent := startChild(t, t.TempDir(), endpoint, "AGENTD_TEST_NOFILE=256")
	c.send(t, shell("first", "true"))
	c.end(t, "first")
	goroutines, descriptors := agent.goroutines(t), agent.descriptors(t)
	for i := 0; i < each; i += 50 {
		for j := i; j < i+50; j++ {
			late := shell(fmt.Sprint("late", j), "sleep 600 & sleep 600")
			late.Timeout = durationpb.New(30 * time.Millisecond)
			c.send(t, late, shell(fmt.Sprint("crash", j), "ulimit -c 0; kill -SEGV $$"), shell(fmt.Sprint("good", j), "echo out; echo err >&2"))
		}
		for j := i; j < i+50; j++ {
			wantEnd(t, c.end(t, fmt.Sprint("late", j)), musterv1.Target_TIMED_OUT, "timeout")
			wantEnd(t, c.end(t, fmt.Sprint("crash", j)), musterv1.Target_FAILED, "SIGSEGV")
			wantEnd(t, c.end(t, fmt.Sprint("good", j)), musterv1.Target_SUCCEEDED, "")
		}
	}
	until(t, "an end of what is left", func() bool {
		return agent.zombies(t) == 0 && agent.goroutines(t) <= goroutines+10 && agent.descriptors(t) <= descriptors+10
	})
}

// Forty results of 1 MiB on a disk of 16 MiB while no coordinator is there:
// output is left out, states never, and the space comes back.
func TestC049OutageOnASmallDisk(t *testing.T) {
	const many = 40
	ln, endpoint := listen(t)
	addr := ln.Addr().String()
	dir, outside := t.TempDir(), t.TempDir()
	goOn := filepath.Join(outside, "go")
	id := func(i int) string { return fmt.Sprintf("c049-%02d", i) }
	agent := startChild(t, dir, endpoint, "AGENTD_TEST_TMPFS=16m")
	disk := fmt.Sprintf("/proc/%d/root%s", agent.cmd.Process.Pid, dir)
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(disk, &st); err != nil {
			t.Fatalf("the agent is gone: %v", err)
		}
		return int64(st.Bavail) * st.Bsize
	}

	t.Run("before the outage", func(t *testing.T) {
		c := serve(t, ln)
		for i := range many {
			// Noise, so that nothing on the way could make it smaller.
			c.send(t, shell(id(i), "true"+waitFile(goOn)+"head -c 1048576 /dev/urandom; touch "+filepath.Join(outside, "done-")+fmt.Sprint(i)))
		}
		for i := range many {
			c.until(t, "a word of "+id(i), func() bool { return len(c.all(id(i))) > 0 })
		}
		if free() < 12<<20 {
			t.Errorf("%d KiB are free before anything ran", free()>>10)
		}
	})
	touch(t, goOn)
	until(t, "the programs", func() bool {
		done, _ := filepath.Glob(filepath.Join(outside, "done-*"))
		return len(done) == many
	})
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, ln)
	whole, lost := 0, 0
	for i := range many {
		end := c.end(t, id(i))
		out := c.out(id(i) + "STDOUT")
		switch {
		case end.State != musterv1.Target_SUCCEEDED || end.Stdout.Size != 1<<20:
			t.Errorf("got %v", end)
		case len(out) == 1<<20 && end.Stdout.Kept == 1<<20 && !end.Stdout.Truncated:
			whole++
		case end.Stdout.Kept == 0 && end.Stdout.Truncated && strings.Contains(end.Reason, "could not be stored"):
			lost++
		default:
			t.Errorf("%d bytes came: %v", len(out), end)
		}
	}
	if whole < 5 || lost < 5 {
		t.Errorf("output of %d came, of %d was left out", whole, lost)
	}
	until(t, "the space", func() bool { return free() > 12<<20 })
	c.send(t, shell("after", "head -c 1048576 /dev/zero"))
	if end := c.end(t, "after"); end.State != musterv1.Target_SUCCEEDED || end.Stdout.Kept != 1<<20 {
		t.Errorf("got %v", end)
	}
}
