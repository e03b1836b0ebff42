package plugin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sh is a program made of a shell script, with a marker of its own.
func sh(t *testing.T, script string, args ...string) Program {
	t.Helper()
	p := Program{
		Args:    append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		Marker:  "MUSTER_RUN=" + rand.Text(),
		Timeout: 30 * time.Second,
		Grace:   time.Second,
	}
	t.Cleanup(func() { KillMarked(p.Marker) })
	return p
}

// writeFile makes a file of a program without a fork of another test
// inheriting the open descriptor: the kernel would call the file busy.
func writeFile(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func marked(marker string) (pids []int) {
	for _, pid := range processes() {
		if carries(pid, []string{marker}) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func wantNoneLeft(t *testing.T, p Program) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := marked(p.Marker)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("processes %v are left", left)
		}
	}
}

func wantExit(t *testing.T, o Outcome, code int) {
	t.Helper()
	if o.StartErr != nil || o.Cause != Exited || o.Signal != "" || o.ExitCode != code {
		t.Fatalf("got %+v, want exit code %d", o, code)
	}
}

func TestOutputAndExitCode(t *testing.T) {
	t.Parallel()
	o := Run(t.Context(), sh(t, `printf out; printf err >&2; exit 3`))
	wantExit(t, o, 3)
	if got := string(o.Stdout.Kept) + "|" + string(o.Stderr.Kept); got != "out|err" {
		t.Errorf("got %q", got)
	}
	sum := sha256.Sum256([]byte("out"))
	if o.Stdout.Size != 3 || o.Stdout.SHA256 != hex.EncodeToString(sum[:]) || o.Stdout.Truncated() {
		t.Errorf("got %+v", o.Stdout)
	}
	if o.Start.IsZero() || o.End.Before(o.Start) {
		t.Errorf("ran from %v to %v", o.Start, o.End)
	}
}

func TestStartedNamesTheGroup(t *testing.T) {
	t.Parallel()
	p := sh(t, `echo $$`)
	var g Group
	p.Started = func(got Group) { g = got }
	o := Run(t.Context(), p)
	if got := strings.TrimSpace(string(o.Stdout.Kept)); got != fmt.Sprint(g.ID) || g.StartTicks == 0 || g.BootID == "" {
		t.Errorf("program %s, group %+v", got, g)
	}
}

func TestC067HangsForEver(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			p := sh(t, `sleep 1000`)
			p.Timeout = 500 * time.Millisecond
			o := Run(t.Context(), p)
			if took := o.End.Sub(o.Start); o.Cause != TimedOut || took < p.Timeout || took > 10*time.Second {
				t.Errorf("cause %v after %v", o.Cause, took)
			}
			wantNoneLeft(t, p)
		})
	}
	all.Wait()
	wantExit(t, Run(t.Context(), sh(t, `exit 0`)), 0)
}

// A program stopped by its timeout is never a success, whatever it says.
func TestTimeoutIsNeverSuccess(t *testing.T) {
	t.Parallel()
	p := sh(t, `trap 'exit 0' TERM; while :; do sleep 0.01; done`)
	p.Timeout = 300 * time.Millisecond
	if o := Run(t.Context(), p); o.Cause != TimedOut || o.OK() || o.ExitCode != 0 {
		t.Errorf("got %+v", o)
	}
}

const stubborn = `
	trap '' TERM INT HUP
	(trap '' TERM INT HUP; while :; do sleep 1; done) &
	(trap '' TERM INT HUP; while :; do sleep 1; done) &
	echo up
	while :; do sleep 1; done`

func TestC068IgnoresTerm(t *testing.T) {
	t.Parallel()
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		p := sh(t, stubborn)
		p.Timeout = 300 * time.Millisecond
		o := Run(t.Context(), p)
		if o.Cause != TimedOut || o.Signal != "SIGKILL" || o.End.Sub(o.Start) > p.Timeout+p.Grace+5*time.Second {
			t.Errorf("got %+v", o)
		}
		if left := marked(p.Marker); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		p := sh(t, stubborn)
		p.Stdout = func([]byte) { cancel() }
		o := Run(ctx, p)
		if o.Cause != Stopped || string(o.Stdout.Kept) != "up\n" {
			t.Errorf("got %+v", o)
		}
		if left := marked(p.Marker); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	})
	t.Run("children get the grace that the leader does not use", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "out")
		p := sh(t, `(trap 'sleep 0.3; echo clean >"$1"; exit' TERM; echo up; while :; do sleep 0.01; done) & wait`, file)
		p.Grace = 20 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		p.Stdout = func([]byte) { cancel() }
		Run(ctx, p)
		if b, _ := os.ReadFile(file); string(b) != "clean\n" {
			t.Errorf("the child wrote %q before its end", b)
		}
	})
	t.Run("moved to another session", func(t *testing.T) {
		t.Parallel()
		p := sh(t, `setsid sh -c 'trap "" TERM; echo up; while :; do sleep 1; done' & wait`)
		ctx, cancel := context.WithCancel(t.Context())
		p.Stdout = func([]byte) { cancel() }
		Run(ctx, p)
		wantNoneLeft(t, p)
	})
	t.Run("stopped by SIGSTOP", func(t *testing.T) {
		t.Parallel()
		p := sh(t, `trap 'echo bye; exit 7' TERM; kill -STOP $$; exit 1`)
		p.Timeout, p.Grace = 300*time.Millisecond, 20*time.Second
		if o := Run(t.Context(), p); o.Cause != TimedOut || string(o.Stdout.Kept) != "bye\n" {
			t.Errorf("got %+v", o)
		}
	})
}

func TestC069GrandchildKeepsStdout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		lives        bool // the documented rule: a session of its own is left alone
	}{
		{"same group", `echo OK; sleep 600 &`, false},
		{"new session", `setsid sleep 600 & echo OK`, true},
		{"double fork", `(setsid sh -c 'sleep 600 & exit' &) ; echo OK`, true},
		{"writes for ever", `setsid sh -c 'trap "" PIPE; while :; do echo line 2>/dev/null; sleep 0.01; done' & echo OK`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := sh(t, c.script)
			began := time.Now()
			o := Run(t.Context(), p)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			wantExit(t, o, 0)
			if !strings.Contains(string(o.Stdout.Kept), "OK\n") {
				t.Errorf("output %q", o.Stdout.Kept)
			}
			if !c.lives {
				wantNoneLeft(t, p)
			} else if len(marked(p.Marker)) == 0 {
				t.Error("the child with a session of its own is gone")
			}
		})
	}
}

func TestC069NothingIsLeftOfARun(t *testing.T) {
	files := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	Run(t.Context(), sh(t, `:`))
	goroutines, fds := runtime.NumGoroutine(), files()
	runs := 5
	if long {
		runs = 100
	}
	for range runs {
		p := sh(t, `setsid sleep 600 & echo OK`)
		p.Drain = 20 * time.Millisecond
		Run(t.Context(), p)
		KillMarked(p.Marker)
	}
	settled := func() bool { return runtime.NumGoroutine() <= goroutines && files() <= fds }
	for end := time.Now().Add(5 * time.Second); !settled(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("goroutines %d → %d, descriptors %d → %d", goroutines, runtime.NumGoroutine(), fds, files())
		}
	}
}

func TestC070WritesWithoutEnd(t *testing.T) {
	for _, c := range []struct {
		name, script     string
		stdout, stderr   int64
		first, last, cut string
	}{
		{"64 MiB to stdout", `printf first; head -c 67108864 /dev/zero; printf last`, 64<<20 + 9, 0, "first", "last", "stdout"},
		{"64 MiB to stderr", `printf first >&2; head -c 67108864 /dev/zero >&2; printf last >&2`, 0, 64<<20 + 9, "first", "last", "stderr"},
		{"both at once", `head -c 16777216 /dev/zero >&2 & head -c 16777216 /dev/zero; wait`, 16 << 20, 16 << 20, "", "", "stdout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			o := Run(t.Context(), sh(t, c.script))
			runtime.ReadMemStats(&after)
			wantExit(t, o, 0)
			if o.Stdout.Size != c.stdout || o.Stderr.Size != c.stderr {
				t.Errorf("sizes %d and %d", o.Stdout.Size, o.Stderr.Size)
			}
			out := o.Stdout
			if c.cut == "stderr" {
				out = o.Stderr
			}
			if !out.Truncated() || len(out.Kept) != 1<<20 || out.Head != 1<<19 ||
				!bytes.HasPrefix(out.Kept, []byte(c.first)) || !bytes.HasSuffix(out.Kept, []byte(c.last)) {
				t.Errorf("kept %d bytes with a head of %d", len(out.Kept), out.Head)
			}
			if grew := int64(after.TotalAlloc - before.TotalAlloc); grew > 16<<20 {
				t.Errorf("%d MiB were allocated", grew>>20)
			}
		})
	}
	t.Run("endless", func(t *testing.T) {
		p := sh(t, `yes`)
		p.Timeout = 300 * time.Millisecond
		o := Run(t.Context(), p)
		if o.Cause != TimedOut || o.Stdout.Size < 1<<20 || o.End.Sub(o.Start) > 5*time.Second {
			t.Errorf("got %v, %d bytes", o.Cause, o.Stdout.Size)
		}
	})
}

func TestC072DiesByASignal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"SEGV", "KILL", "TERM", "PIPE", "ABRT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Run(t.Context(), sh(t, `ulimit -c 0; printf '{"result":'; kill -$1 $$`, name))
			if o.Cause != Exited || o.Signal != "SIG"+name || o.ExitCode != -1 || o.OK() || string(o.Stdout.Kept) != `{"result":` {
				t.Errorf("got %+v", o)
			}
		})
	}
}

func TestC073OddExits(t *testing.T) {
	t.Parallel()
	for _, code := range []int{1, 3, 126, 127, 255} {
		o := Run(t.Context(), sh(t, `echo why >&2; exit $1`, fmt.Sprint(code)))
		wantExit(t, o, code)
		if string(o.Stderr.Kept) != "why\n" {
			t.Errorf("stderr %q", o.Stderr.Kept)
		}
	}
}

func TestC073CannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		return writeFile(t, filepath.Join(dir, name), content, mode)
	}
	busy := file("busy", "#!/bin/sh\n", 0o755)
	f, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		name string
		p    Program
		want string
	}{
		{"no such file", Program{Args: []string{filepath.Join(dir, "none")}}, NotFound},
		{"not in PATH", Program{Args: []string{"no-such-program"}}, NotFound},
		{"in a PATH of the command's own", Program{Args: []string{"sh"}, Env: []string{"PATH=" + dir}}, NotFound},
		{"file as a folder", Program{Args: []string{busy + "/x"}}, NotFound},
		{"not executable", Program{Args: []string{file("plain", "#!/bin/sh\n", 0o644)}}, Permission},
		{"no first line", Program{Args: []string{file("noshebang", "echo hi\n", 0o755)}}, ExecFormat},
		{"empty", Program{Args: []string{file("empty", "", 0o755)}}, ExecFormat},
		{"CRLF in the first line", Program{Args: []string{file("crlf", "#!/bin/sh\r\necho hi\r\n", 0o755)}}, NoInterpreter},
		{"missing interpreter", Program{Args: []string{file("lost", "#!/no/such/interpreter\n", 0o755)}}, NoInterpreter},
		{"directory", Program{Args: []string{dir}}, IsDirectory},
		{"busy", Program{Args: []string{busy}}, TextBusy},
		{"no directory to run in", Program{Args: []string{"sh"}, Dir: filepath.Join(dir, "gone")}, NoDir},
		{"file to run in", Program{Args: []string{"sh"}, Dir: busy}, NoDir},
		{"C078 arguments too long", Program{Args: []string{"sh", strings.Repeat("x", 1<<20)}}, TooLong},
		{"C078 NUL", Program{Args: []string{"sh", "a\x00b"}}, BadArgument},
		{"C078 NUL in the environment", Program{Args: []string{"sh"}, Env: []string{"A=\x00"}}, BadArgument},
		{"C078 nameless variable", Program{Args: []string{"sh"}, Env: []string{"=x"}}, BadArgument},
		{"nothing", Program{}, BadArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.Started = func(Group) { t.Error("started") }
			o := Run(t.Context(), c.p)
			if o.StartErr == nil || o.StartErr.Reason != c.want || o.OK() {
				t.Errorf("got %v, want %q", o.StartErr, c.want)
			}
		})
	}
}

func TestC074StdinIsNotRead(t *testing.T) {
	t.Parallel()
	input := bytes.Repeat([]byte("0123456789abcde\n"), 8<<20/16)
	sum := sha256.Sum256(input)
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
		cause        Cause
		all          bool
	}{
		{"never reads", `sleep 1000`, 300 * time.Millisecond, TimedOut, false},
		{"exits at once", `exit 0`, 0, Exited, false},
		{"closes it and works on", `exec <&-; sleep 0.1; echo done`, 0, Exited, false},
		{"copies it", `cat`, 0, Exited, true},
		{"prints first", `head -c 8388608 /dev/zero >&2; cat`, 0, Exited, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := sh(t, c.script)
			p.Stdin = input
			if c.timeout > 0 {
				p.Timeout = c.timeout
			}
			o := Run(t.Context(), p)
			if o.Cause != c.cause || (c.cause == Exited && o.ExitCode != 0) {
				t.Fatalf("got %+v", o)
			}
			if c.all && (o.Stdout.Size != int64(len(input)) || o.Stdout.SHA256 != hex.EncodeToString(sum[:])) {
				t.Errorf("%d bytes came through", o.Stdout.Size)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if o := Run(t.Context(), sh(t, `cat`)); !o.OK() || o.Stdout.Size != 0 {
			t.Errorf("got %+v", o)
		}
	})
}

func TestC078ArgumentsAreData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"$(touch x)", "`touch x`", ";touch x", "new\nline", "tab\t", "-n", "", "\xff\xfe", strings.Repeat("y", 100<<10), "*", "'\"\\"}
	want := strings.Join(args, "\x00") + "\x00"
	p := Program{Args: append([]string{"/usr/bin/printf", `%s\0`}, args...), Dir: dir}
	o := Run(t.Context(), p)
	wantExit(t, o, 0)
	if string(o.Stdout.Kept) != want {
		t.Errorf("got %.200q", o.Stdout.Kept)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("something was executed: %v", left)
	}
	p = Program{Args: []string{"/usr/bin/env", "-0"}, Env: []string{"A=$(id)\n;", "B=", "C=\xff", "D=a=b"}}
	o = Run(t.Context(), p)
	if got := strings.Split(strings.TrimSuffix(string(o.Stdout.Kept), "\x00"), "\x00"); !slices.Equal(got, p.Env) {
		t.Errorf("environment %q", got)
	}
}

func TestEnvironLeavesOutOurOwn(t *testing.T) {
	t.Setenv("MUSTER_TOKEN", "secret")
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	t.Setenv("KEPT", "1")
	env := Environ("KEPT=2", "MUSTER_COMMAND_ID=x", "KEPT=3")
	if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "MUSTER_TOKEN") || strings.HasPrefix(kv, "NOTIFY") }) {
		t.Error("muster's own variables are handed on")
	}
	if !slices.Contains(env, "MUSTER_COMMAND_ID=x") || !slices.Contains(env, "KEPT=3") || slices.Contains(env, "KEPT=1") || slices.Contains(env, "KEPT=2") {
		t.Errorf("got %q", env)
	}
}

// What an agent left behind is killed by its group, or by its marker when it
// moved; a number that is somebody else's by now is left alone.
func TestC075KillLeft(t *testing.T) {
	t.Parallel()
	p := sh(t, `setsid sleep 600 & sleep 600`)
	groups := make(chan Group, 1)
	p.Started = func(g Group) { groups <- g }
	ended := make(chan Outcome, 1)
	go func() { ended <- Run(context.Background(), p) }()
	g := <-groups
	for end := time.Now().Add(5 * time.Second); len(marked(p.Marker)) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program did not come up")
		}
	}
	other, boot := g, g
	other.StartTicks++
	boot.BootID = "another"
	for _, stranger := range []Group{other, boot, {}} {
		if left := KillLeft(stranger, "", 0); left != 0 {
			t.Errorf("%+v: %d found", stranger, left)
		}
	}
	if len(marked(p.Marker)) < 3 {
		t.Fatal("a stranger was killed")
	}
	if left := KillLeft(g, p.Marker, 5*time.Second); left != 0 {
		t.Errorf("%d left", left)
	}
	wantNoneLeft(t, p)
	if o := <-ended; o.Signal != "SIGKILL" {
		t.Errorf("got %+v", o)
	}

	// An agent that died before it could note the group knows the mark alone.
	go func() { ended <- Run(context.Background(), p) }()
	<-groups
	if left := KillLeft(Group{}, p.Marker, 5*time.Second); left != 0 {
		t.Errorf("%d left", left)
	}
	wantNoneLeft(t, p)
	<-ended
}

// What has to precede the process may take its time, and may fail.
func TestProcessWaitsUntilItMayBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ran")
	program := Program{Args: []string{"/bin/sh", "-c", "echo ran >" + file}}
	ran := func() bool { _, err := os.Stat(file); return err == nil }
	for name, await := range map[string]func(cancel func()) error{
		"an error":  func(func()) error { return errors.New("no") },
		"cancelled": func(cancel func()) error { cancel(); return nil },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		p := program
		p.Await = func() error { return await(cancel) }
		if o := Run(ctx, p); o.Cause != Stopped || o.StartErr != nil || !o.Start.Equal(o.End) || ran() {
			t.Errorf("%s: got %+v", name, o)
		}
	}
	waits, goOn := make(chan bool, 1), make(chan struct{})
	program.Await = func() error {
		waits <- ran()
		<-goOn
		waits <- ran()
		return nil
	}
	done := make(chan Outcome, 1)
	go func() { done <- Run(t.Context(), program) }()
	before := <-waits
	close(goOn)
	if before || <-waits {
		t.Error("it ran before it might")
	}
	if o := <-done; !o.OK() || !ran() {
		t.Errorf("got %+v", o)
	}

	program.Await = func() error { t.Error("asked for a program that cannot be started"); return nil }
	program.Dir = filepath.Join(t.TempDir(), "none")
	if o := Run(t.Context(), program); o.StartErr == nil {
		t.Errorf("got %+v", o)
	}
}
