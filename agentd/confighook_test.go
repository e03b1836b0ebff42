package agentd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// quick makes the agent try again soon.
func (r *configRig) quick() *configRig {
	r.cfg.retry = 50 * time.Millisecond
	return r
}

func lines(file string) []string {
	b, _ := os.ReadFile(file)
	return strings.Fields(string(b))
}

func TestC080CheckFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "checks")
	for name, c := range map[string]struct {
		bad  func(*musterv1.ConfigOffer)
		time time.Duration
		want []string
	}{
		"exits 1":            {checked("echo x >>" + log + "; echo no such option >&2; exit 1"), 20 * time.Second, []string{"check_cmd", "exit code 1", "no such option"}},
		"says it on stdout":  {checked("echo line 3; exit 2"), 20 * time.Second, []string{"exit code 2", "line 3"}},
		"hangs":              {checked("sleep 600"), 300 * time.Millisecond, []string{"check_cmd", "timeout"}},
		"is missing":         {func(o *musterv1.ConfigOffer) { o.File.CheckCmd = []string{"/no/such/check", "{}"} }, 20 * time.Second, []string{"/no/such/check", "not found"}},
		"dies":               {checked("kill -SEGV $$"), 20 * time.Second, []string{"SIGSEGV"}},
		"writes to the file": {checked(`echo spoilt >"$MUSTER_CONFIG_TARGET"; exit 1`), 20 * time.Second, []string{"exit code 1"}},
		"writes and accepts": {checked(`echo spoilt >"$MUSTER_CONFIG_TARGET"`), 20 * time.Second, []string{"changed the file in place"}},
		"replaces and fails": {checked(`rm "$MUSTER_CONFIG_TARGET"; exit 1`), 20 * time.Second, []string{"exit code 1"}},
		"spoils the new one": {checked(`echo spoilt >>"$1"`, "sh", "{}"), 20 * time.Second, []string{"changed the staged file"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newConfigRig(t)
			good := version("app.conf", 1, "good\n")
			r.apply(good)
			chmod(t, r.file("app.conf"), 0o640)
			r.fail(version("app.conf", 2, "bad\n", c.bad, within(c.time)), 1, c.want...)
			r.wantFile("", "app.conf", "good\n")
			wantMode(t, r.file("app.conf"), 0o640)
			r.wantTree("app.conf")

			s := statusIn(r.restart(), "app.conf")
			if s.GetStatus() != musterv1.ConfigStatus_FAILED || s.Version != 2 || s.RunningVersion != 1 {
				t.Errorf("after a restart: %v", s)
			}
			r.wantFile("", "app.conf", "good\n")
			r.offer(good) // the wish is back: nothing is to be done but to say so
			r.wait("app.conf", 1, musterv1.ConfigStatus_APPLIED)
		})
	}
}

func chmod(t *testing.T, file string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
}

func wantMode(t *testing.T, file string, mode os.FileMode) {
	t.Helper()
	if info, err := os.Stat(file); err != nil || info.Mode() != mode {
		t.Errorf("mode %v, want %v (%v)", info.Mode(), mode, err)
	}
}

// A check that fails is tried again, more and more seldom, over restarts too.
func TestC080AttemptsAreFew(t *testing.T) {
	var r configRecord
	c := &content{Version: 2, Path: "a"}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for hour, most := range []int{13, 7, 7} {
		n := 0
		for end := now.Add(time.Hour); now.Before(end); now = r.again(firstRetry, now) {
			r.try(c, now)
			r.fail(c, "no", true)
			n++
		}
		if n > most || n < 6 {
			t.Errorf("%d attempts in hour %d", n, hour+1)
		}
	}
	if at := r.again(firstRetry, now.Add(-100*24*time.Hour)); at.Sub(now.Add(-100*24*time.Hour)) > longestRetry {
		t.Errorf("the clock was set back: next at %v", at)
	}
	r.try(&content{Version: 3, Path: "a"}, now)
	if at := r.again(firstRetry, now); at.Sub(now) != firstRetry {
		t.Errorf("another version is tried again after %v", at.Sub(now))
	}
}

func TestC080CheckIsTriedAgain(t *testing.T) {
	r := newConfigRig(t)
	r.quick().restart()
	dir := t.TempDir()
	log, ok := filepath.Join(dir, "log"), filepath.Join(dir, "ok")
	o := version("app.conf", 1, "new", checked("echo x >>"+log+"; test -e "+ok))
	r.fail(o, 0, "exit code 1")
	until(t, "two more attempts", func() bool { return len(lines(log)) >= 3 })
	touch(t, ok)
	r.wait("app.conf", 1, musterv1.ConfigStatus_APPLIED)
	r.wantFile("", "app.conf", "new")
	if got := strings.Join(r.history("app.conf"), " "); got != "APPLYING 1/0 FAILED 1/0 APPLIED 1/1" {
		t.Errorf("told %s: retries are not news", got)
	}
}

func TestC080RetryOutlivesTheAgent(t *testing.T) {
	r := newConfigRig(t)
	r.quick().restart()
	ok := filepath.Join(t.TempDir(), "ok")
	r.fail(version("app.conf", 1, "new", checked("test -e "+ok)), 0)
	r.agent.stop()
	touch(t, ok)
	r.restart()
	r.wait("app.conf", 1, musterv1.ConfigStatus_APPLIED)
	r.wantFile("", "app.conf", "new")
	if left, _ := filepath.Glob(filepath.Join(r.cfg.Dir, "held-configs", "*.content")); len(left) != 0 {
		t.Errorf("content is kept of what is applied: %v", left)
	}
}

func TestC081CheckSeesTheNewContent(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("app.conf", 1, "old marker\n"))
	chmod(t, r.file("app.conf"), 0o604)
	seen := filepath.Join(t.TempDir(), "seen")
	r.apply(version("app.conf", 2, "new marker\n", checked(`grep -q "new marker" "$1" && test "$1" = "$MUSTER_CONFIG_FILE" &&
		stat -c %a "$1" >`+seen+` && pwd >>`+seen+` && echo $MUSTER_CONFIG_NAME $MUSTER_CONFIG_KIND $MUSTER_CONFIG_VERSION $MUSTER_CONFIG_TARGET >>`+seen, "sh", "{}")))
	want := fmt.Sprintf("604 %s app.conf PIPELINE 2 %s", r.root, r.file("app.conf"))
	if got := strings.Join(lines(seen), " "); got != want {
		t.Errorf("the check saw %q, want %q", got, want)
	}
	r.fail(version("app.conf", 3, "newest marker\n", checked(`grep -q "new marker" "$1"`, "sh", "{}")), 2, "exit code 1")
	r.wantFile("", "app.conf", "new marker\n")
	// The staged file has the ending of the target: some programs want that.
	r.apply(version("unit", 1, "[Unit]", at("x.service"), checked(`case "$1" in *.service) exit 0; esac; exit 1`, "sh", "{}")))
}

// Braces alone are replaced, anywhere in an argument; the reload's are its own.
func TestC081Placeholder(t *testing.T) {
	r := newConfigRig(t)
	out := filepath.Join(t.TempDir(), "out")
	o := version("a", 1, "{}", checked(`echo "$@" >`+out, "sh", "--file={}", "{}x{}", "{ }"))
	o.File.ReloadCmd = []string{"/bin/sh", "-c", `echo "$@" >>` + out, "sh", "{}"}
	r.apply(o)
	staged := r.file(".muster-pipeline-a.new")
	want := fmt.Sprintf("--file=%s %sx%s { } {}", staged, staged, staged)
	if got := strings.Join(lines(out), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestC082ReloadFails(t *testing.T) {
	for name, c := range map[string]struct {
		reload string
		time   time.Duration
		want   string
	}{
		"exits 1":       {"echo cannot bind >&2; exit 1", 20 * time.Second, "cannot bind"},
		"hangs":         {"sleep 600", 300 * time.Millisecond, "timeout"},
		"only takes v1": {`grep -q one "$MUSTER_CONFIG_TARGET"`, 20 * time.Second, "exit code 1"},
		"is killed":     {"kill -KILL $$", 20 * time.Second, "SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newConfigRig(t)
			log := filepath.Join(t.TempDir(), "log")
			good := version("app.conf", 1, "one\n", reloaded(`cat "$MUSTER_CONFIG_TARGET" >>`+log))
			r.apply(good)
			was, err := os.Stat(r.file("app.conf"))
			if err != nil {
				t.Fatal(err)
			}
			bad := reloaded(`cat "$MUSTER_CONFIG_TARGET" >>` + log + "; " + c.reload)
			r.fail(version("app.conf", 2, "two\n", bad, within(c.time)), 1, "reload_cmd", c.want)
			r.wantFile("", "app.conf", "one\n")
			r.wantTree("app.conf")
			if is, err := os.Stat(r.file("app.conf")); err != nil || !os.SameFile(was, is) {
				t.Errorf("it is not the file that was there before (%v)", err)
			}
			if got := strings.Join(lines(log), " "); got != "one two one" {
				t.Errorf("reloaded with %s", got)
			}
			s := statusIn(r.restart(), "app.conf")
			if s.GetStatus() != musterv1.ConfigStatus_FAILED || s.Version != 2 || s.RunningVersion != 1 {
				t.Errorf("after a restart: %v", s)
			}
			r.offer(good)
			r.wait("app.conf", 1, musterv1.ConfigStatus_APPLIED)
			if got := strings.Join(lines(log), " "); got != "one two one" {
				t.Errorf("in the end reloaded with %s", got)
			}
		})
	}
}

// The first version of a config has nothing to go back to: a file that was there
// before it, or none.
func TestC082FirstVersionIsTakenBack(t *testing.T) {
	r := newConfigRig(t)
	r.put("there", "of the package")
	r.fail(version("there", 1, "ours", reloaded("exit 1")), 0, "reload_cmd")
	r.fail(version("new", 1, "ours", reloaded("exit 1")), 0, "reload_cmd")
	r.wantFile("", "there", "of the package")
	r.wantTree("there")
}

// A config that moves to another path leaves the old one, or comes back to it.
func TestC082ConfigMoves(t *testing.T) {
	r := newConfigRig(t)
	r.put("dir/keep", "")
	seen := filepath.Join(t.TempDir(), "seen")
	list := reloaded("ls dir >>" + seen)
	r.apply(version("app", 1, "one", at("dir/a.conf")))
	r.apply(version("app", 2, "two", at("dir/b.conf"), list))
	r.wantTree("dir/b.conf", "dir/keep")
	if got := strings.Join(lines(seen), " "); got != "b.conf keep" {
		t.Errorf("the program saw %s", got)
	}
	r.fail(version("app", 3, "three", at("dir/c.conf"), reloaded("exit 1")), 2, "reload_cmd")
	r.wantTree("dir/b.conf", "dir/keep")
	r.wantFile("dir/b.conf", "", "two")
	r.put("dir/d.conf", "foreign")
	r.fail(version("app", 4, "four", at("dir/d.conf"), reloaded("exit 1")), 2, "reload_cmd")
	r.wantTree("dir/b.conf", "dir/d.conf", "dir/keep")
	r.wantFile("dir/d.conf", "", "foreign")
	r.apply(version("app", 5, "five", at("dir/d.conf")))
	r.wantTree("dir/d.conf", "dir/keep")
}

func TestHooksMustBeAllowed(t *testing.T) {
	r := newConfigRig(t)
	r.cfg.Allow = nil
	r.quick().restart()
	ran := filepath.Join(t.TempDir(), "ran")
	r.fail(version("checked", 1, "x", checked("touch "+ran)), 0, "--allow hooks")
	r.fail(version("reloaded", 1, "x", reloaded("touch "+ran)), 0, "--allow hooks")
	r.apply(version("plain", 1, "x"))
	r.wantTree("plain")
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program was run")
	}
	r.cfg.Allow = []string{"hooks"}
	r.restart()
	r.wait("checked", 1, musterv1.ConfigStatus_APPLIED)
	r.wait("reloaded", 1, musterv1.ConfigStatus_APPLIED)
}

// A deletion is not kept up by a program that does not want it.
func TestReloadCannotKeepAConfig(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("a", 1, "x", reloaded(`test -e "$MUSTER_CONFIG_TARGET"`)))
	r.offer(removal("a"))
	s := r.wait("a", -1, musterv1.ConfigStatus_DELETED)
	if !strings.Contains(s.Reason, "reload_cmd") {
		t.Errorf("got %v", s)
	}
	r.wantTree()
}

// A check that hangs keeps neither commands nor other configs from going on.
func TestHangingCheckStopsNothingElse(t *testing.T) {
	r := newConfigRig(t)
	for i := range applyAtOnce - 1 {
		r.offer(version(fmt.Sprint("hangs", i), 1, "x", checked("sleep 600"), within(time.Minute)))
	}
	r.apply(version("good", 1, "x"))
	r.c.send(t, ping("p"))
	if end := r.c.end(t, "p"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
	began := time.Now()
	s := statusIn(r.restart(), "hangs0") // the stop does not wait for the check either
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the agent took %v to stop", took)
	}
	if s.GetStatus() != musterv1.ConfigStatus_FAILED || !strings.Contains(s.Reason, "stopped") {
		t.Errorf("got %v", s)
	}
}

// What the agent cannot remember it takes back, however far it was.
func TestRecordCannotBeStored(t *testing.T) {
	for name, when := range map[string]func(string) func(*musterv1.ConfigOffer){
		"before the swap": func(script string) func(*musterv1.ConfigOffer) { return checked(script) },
		"after it":        reloaded,
	} {
		t.Run(name, func(t *testing.T) {
			r := newConfigRig(t)
			r.apply(version("a", 1, "one"))
			records := filepath.Join(r.cfg.Dir, "held-configs")
			r.fail(version("a", 2, "two", when("mv "+records+" "+records+".away; touch "+records)), 1, "record could not be stored")
			r.wantFile("a", "", "one")
			r.wantTree("a")
			r.agent.stop()
			if err := errors.Join(os.Remove(records), os.Rename(records+".away", records)); err != nil {
				t.Fatal(err)
			}
			s := statusIn(r.restart(), "a") // the record says that it was under way
			if s.GetStatus() != musterv1.ConfigStatus_FAILED || s.RunningVersion != 1 {
				t.Errorf("got %v", s)
			}
			r.wantFile("a", "", "one")
		})
	}
}
