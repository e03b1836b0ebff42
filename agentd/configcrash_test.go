package agentd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// crashSteps are the steps at which the agent is killed. At "back" it takes a
// version back that its program did not accept, from "delete" on it deletes.
var crashSteps = []string{"begin", "stage", "check", "announce", "swap", "reload", "commit", "sweep", "back", "delete", "deleted"}

// An agent is killed, again and again, at each of its steps and at random
// moments. At every moment the file is one of the versions, whole, with its mode
// and owner, and the next agent says which.
func TestC086KilledWhileItApplies(t *testing.T) {
	each, random, size := 1, 12, 256<<10
	if long {
		each, random, size = 6, 200-6*len(crashSteps), maxConfigSize
	}
	c := newCrashRig(t, size)
	hits := map[string]int{}
	for range each {
		for _, step := range crashSteps {
			c.round(step)
			hits[step]++
		}
	}
	for range random {
		hits[c.round("")]++
	}
	t.Logf("killed at %v", hits)
	for _, step := range crashSteps {
		if long && hits[step] < 5 {
			t.Errorf("killed at %q only %d times", step, hits[step])
		}
	}
}

type crashRig struct {
	*configRig
	endpoint string
	steps    string // the log of steps
	child    *child
	version  int32
	content  map[int32]string // by version
	two      [2]string        // what the file is, by turns
	span     time.Duration    // in which random kills come
}

func newCrashRig(t *testing.T, size int) *crashRig {
	ln, endpoint := listen(t)
	c := &crashRig{
		configRig: &configRig{t: t, c: serve(t, ln), root: t.TempDir()},
		endpoint:  endpoint, steps: filepath.Join(t.TempDir(), "steps"), content: map[int32]string{},
		two: [2]string{strings.Repeat("a", size), strings.Repeat("b", size)},
	}
	c.cfg.Dir = t.TempDir()
	c.startChild("")
	began := time.Now()
	c.create()
	c.span = 2 * time.Since(began) // of the start and one application
	c.kill()
	c.watch()
	return c
}

func (c *crashRig) startChild(hold string) {
	c.t.Helper()
	c.child = startConfigChild(c.t, c.cfg.Dir, c.endpoint, c.root, "AGENTD_TEST_STEPS="+c.steps, "AGENTD_TEST_STEP="+hold)
}

// create puts the first version in the place of a file with a mode and owner.
func (c *crashRig) create() {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "first")
	if err := os.WriteFile(file, []byte(c.two[0]), 0o600); err != nil {
		c.t.Fatal(err)
	}
	chown(c.t, file)
	chmod(c.t, file, 0o640)
	if err := os.Rename(file, c.file("app.conf")); err != nil {
		c.t.Fatal(err)
	}
	c.apply(c.next())
}

// next is another version, of the other content.
func (c *crashRig) next(change ...func(*musterv1.ConfigOffer)) *musterv1.ConfigOffer {
	c.version++
	o := version("app.conf", c.version, c.two[c.version%2], append(change, checked("test -s $1", "sh", "{}"), reloaded("true"))...)
	c.content[c.version] = string(o.Content)
	return o
}

// watch looks at the file all the time, until the test ends.
func (c *crashRig) watch() {
	done, stopped := make(chan struct{}), make(chan struct{})
	sums := map[[32]byte]bool{sha256.Sum256([]byte(c.two[0])): true, sha256.Sum256([]byte(c.two[1])): true}
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			b, err := os.ReadFile(c.file("app.conf"))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was deleted
			}
			if err != nil || !sums[sha256.Sum256(b)] {
				c.t.Errorf("the file was neither version: %d bytes, %v", len(b), err)
				return
			}
		}
	}()
	c.t.Cleanup(func() { close(done); <-stopped })
}

// round has a version applied, or the config deleted, kills the agent at a step or
// at random, and checks what the next one makes of it. It returns the step.
func (c *crashRig) round(step string) (at string) {
	t := c.t
	t.Helper()
	if err := os.Truncate(c.steps, 0); err != nil {
		t.Fatal(err)
	}
	o := c.next()
	switch how := rand.N(10); {
	case step == "back" || step == "" && how == 0:
		o.File.ReloadCmd = []string{"/bin/sh", "-c", "exit 1"}
	case strings.HasPrefix(step, "delete") || step == "" && how == 1:
		o = removal("app.conf")
	}
	c.startChild(step)
	c.offer(o)
	if step != "" {
		if l, err := c.child.out.ReadString('\n'); err != nil || l != "held\n" {
			t.Fatalf("at %s the agent said %q, %v", step, l, err)
		}
	} else {
		<-time.After(rand.N(c.span))
	}
	c.kill()
	if log := lines(c.steps); len(log) > 0 {
		at = log[len(log)-1]
	}
	c.whole()
	c.recovers(o)
	return at
}

// whole checks the file after a kill.
func (c *crashRig) whole() {
	c.t.Helper()
	info, err := os.Stat(c.file("app.conf"))
	if errors.Is(err, fs.ErrNotExist) {
		return // it was to be deleted
	}
	if err != nil {
		c.t.Fatal(err)
	}
	wantMode(c.t, c.file("app.conf"), 0o640)
	if os.Geteuid() == 0 {
		wantOwner(c.t, c.file("app.conf"), nobody)
	}
	if info.Size() != int64(len(c.two[0])) {
		c.t.Errorf("%d bytes", info.Size())
	}
}

// recovers starts the next agent, offers again what it does not know, and waits
// for an end of it.
func (c *crashRig) recovers(o *musterv1.ConfigOffer) {
	t := c.t
	t.Helper()
	c.c.mu.Lock()
	before, heard := len(c.c.registers), len(c.c.statuses)
	c.c.mu.Unlock()
	c.startChild("")
	var s *musterv1.ConfigStatus
	c.c.until(t, "a Register", func() bool {
		if len(c.c.registers) > before {
			s = statusIn(c.c.registers[before], "app.conf")
			return true
		}
		return false
	})
	if s.GetVersion() != o.Version {
		c.offer(o)
	}
	c.c.until(t, "an end", func() bool {
		for _, told := range c.c.statuses[heard:] {
			s = told
		}
		return s.GetVersion() == o.Version && s.Status != musterv1.ConfigStatus_APPLYING && !strings.Contains(s.Reason, "while it was being applied")
	})
	want, there := c.content[s.RunningVersion]
	if got, err := os.ReadFile(c.file("app.conf")); there != (err == nil) || string(got) != want {
		t.Errorf("after %v there are %d bytes, %v", s, len(got), err)
	}
	left := tree(t, c.root)
	if s.Status == musterv1.ConfigStatus_DELETED {
		if len(left) != 0 {
			t.Errorf("deleted, and there is %v", left)
		}
		c.create()
	} else {
		c.wantTree("app.conf")
	}
	c.kill()
}

// kill is kill -9, and waits until the coordinator knows.
func (c *crashRig) kill() {
	c.t.Helper()
	c.child.kill()
	c.c.until(c.t, "the end of the link", func() bool { return c.c.peer == nil })
}

func TestC086DiskFull(t *testing.T) {
	r, child := newConfigChild(t, func(root, data string) string {
		return "tmpfs:1m:" + root + ",tmpfs:3m:" + data
	})
	small, large := strings.Repeat("s", 400<<10), strings.Repeat("l", 900<<10)
	r.apply(version("a", 1, small))
	r.fail(version("a", 2, large), 1, r.file("a"), "no space left")
	r.wantFile("a", "", small)
	if got := strings.Join(tree(t, r.seen), " "); got != "a" {
		t.Errorf("there is %s", got)
	}
	r.apply(version("a", 3, small[1:]))
	r.offer(removal("a"))
	r.wait("a", -1, musterv1.ConfigStatus_DELETED)
	r.apply(version("a", 4, small[2:]))

	// The data folder is full: what cannot be remembered is not begun.
	fill := fmt.Sprintf("/proc/%d/root%s/fill", child.cmd.Process.Pid, r.cfg.Dir)
	if err := os.WriteFile(fill, make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	r.fail(version("a", 5, small), 4, "could not be stored", "no space left")
	r.wantFile("a", "", small[2:])
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	r.offer(version("a", 6, small))
	r.wait("a", 6, musterv1.ConfigStatus_APPLIED)
}

// A program that its dead agent left behind is ended before anything else is done
// for its config.
func TestC086LeftOverHookIsEnded(t *testing.T) {
	ln, endpoint := listen(t)
	r := &configRig{t: t, c: serve(t, ln), root: t.TempDir()}
	dir := t.TempDir()
	child := startConfigChild(t, dir, endpoint, r.root)
	file := filepath.Join(t.TempDir(), "ran")
	r.apply(version("a", 1, "one"))
	r.offer(version("a", 2, "two", reloaded("echo $$ >>"+file+"; sleep 600"), within(time.Minute)))
	until(t, "the reload", func() bool { return len(ran(file)) == 1 })
	r.wantFile("a", "", "two")
	child.kill()
	startConfigChild(t, dir, endpoint, r.root)
	r.c.until(t, "a Register", func() bool { return len(r.c.registers) == 2 })
	if s := statusIn(r.c.registers[1], "a"); s.GetStatus() != musterv1.ConfigStatus_FAILED || s.Version != 2 || s.RunningVersion != 1 {
		t.Errorf("got %v", s)
	}
	r.wantFile("a", "", "one")
	if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", ran(file)[0])); len(b) > 0 {
		t.Error("the reload of the dead agent still runs")
	}
}

// A version that makes the agent die is taken back by the next one, whose program
// is told, and is not tried again.
func TestC082VersionThatKillsTheAgent(t *testing.T) {
	ln, endpoint := listen(t)
	r := &configRig{t: t, c: serve(t, ln), root: t.TempDir()}
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "log")
	child := startConfigChild(t, dir, endpoint, r.root)
	r.apply(version("a", 1, "one", reloaded(`cat "$MUSTER_CONFIG_TARGET" >>`+log)))
	r.offer(version("a", 2, "two", reloaded(`cat "$MUSTER_CONFIG_TARGET" >>`+log+"; kill -KILL $PPID; sleep 60")))
	_ = child.cmd.Wait()
	startConfigChild(t, dir, endpoint, r.root)
	r.c.until(t, "a Register", func() bool { return len(r.c.registers) == 2 })
	if s := statusIn(r.c.registers[1], "a"); s.GetStatus() != musterv1.ConfigStatus_FAILED || s.Version != 2 || s.RunningVersion != 1 {
		t.Errorf("got %v", s)
	}
	r.wantFile("a", "", "one")
	until(t, "the program to be told", func() bool { return strings.Join(lines(log), "") == "onetwoone" })
	r.apply(version("b", 1, "x"))
	if got := r.history("a"); got[len(got)-1] != "APPLYING 2/1" {
		t.Errorf("tried again: %v", got)
	}
}
