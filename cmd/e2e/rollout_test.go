package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type configRollout struct {
	ID      string
	Version int
	State   string
	Counts  map[string]int
}

// lastRollout is the newest of a config.
func (f *fleet) lastRollout(config string) configRollout {
	f.t.Helper()
	var list struct{ Rollouts []configRollout }
	f.do("GET", "/v1/configs/"+config+"/rollouts?page_size=1", "", http.StatusOK, &list)
	if len(list.Rollouts) == 0 {
		f.t.Fatalf("config %s has no rollout", config)
	}
	return list.Rollouts[0]
}

// startHeld starts a fleet of three that hold version 1 of the site's motd; its
// check wants the word hello.
func startHeld(t *testing.T) (f *fleet, s *site, agents map[string]*process) {
	t.Helper()
	f, agents = startFleet(t), map[string]*process{}
	for _, id := range []string{"web-1", "web-2", "web-3"} {
		agents[id] = f.startAgent(id, "--tag", "role=web", "--allow", "hooks")
	}
	f.waitOnline("web-1", "web-2", "web-3")
	s = newSite(t, `tags["role"] == "web"`, "hello 1\n")
	s.write("configs/motd.yaml", "bindings: {groups: [web]}\ncontent_file: motd.txt\nfile: {path: motd.conf, check_cmd: [grep, -q, hello, \"{}\"]}\nrollout: {canary: 1, batch: 1}\n")
	f.wantMuster(0, []string{"apply", "-f", s.dir}, "done")
	f.waitHeld("motd.conf", "hello 1\n", "web-1", "web-2", "web-3")
	return f, s, agents
}

// An operator's day with a config: change, a bad change that halts and goes
// back, back to an older version by hand, and what the folder says again.
func TestConfigsDay(t *testing.T) {
	t.Parallel()
	f, s, _ := startHeld(t)
	web := []string{"web-1", "web-2", "web-3"}
	events := f.watch("?kinds=rollout")
	apply := []string{"apply", "-f", s.dir}

	s.write("configs/motd.txt", "hello 2\n")
	f.wantMuster(0, append(apply, "--dry-run"), "-hello 1\n", "+hello 2\n", "+0/-0/~3 of 3 agents", "nothing was changed")
	f.waitHeld("motd.conf", "hello 1\n", web...)
	f.wantMuster(0, apply, "version 2 of motd DONE: applied 3", "3/3")
	f.waitHeld("motd.conf", "hello 2\n", web...)
	f.wantMuster(0, apply, "nothing to do")

	s.write("configs/motd.txt", "bad\n")
	f.wantMuster(2, apply, "ROLLED_BACK", "check_cmd: exit code 1", "rolled back 1, skipped 2")
	f.waitHeld("motd.conf", "hello 2\n", web...)
	bad := f.lastRollout("motd")
	f.wantMuster(2, []string{"configs", "rollout", "watch", bad.ID}, "version 3 of motd ROLLED_BACK")
	f.wantMuster(0, []string{"configs", "rollout", "show", bad.ID}, "canary 1, batch 1", "web-1  FAILED   2       true")
	f.wantMuster(0, []string{"configs", "status", "motd", "--status", "applied"}, "web-1  APPLIED  2        2        2")
	f.wantMuster(1, []string{"configs", "rollout", "resume", bad.ID}, "ROLLED_BACK")
	s.write("configs/motd.txt", "hello 2\n")
	f.wantMuster(0, apply, "config motd: no change, version 2", "nothing to do")
	f.wantMuster(0, []string{"configs", "diff", "motd"}, "-hello 2\n", "+bad\n")

	f.wantMuster(0, []string{"configs", "rollback", "motd", "--to", "1", "--batch", "2", "--note", "by hand"}, "version 1 of motd DONE: applied 3")
	f.waitHeld("motd.conf", "hello 1\n", web...)
	f.wantMuster(1, []string{"configs", "rollback", "motd", "--to", "9"}, `no version 9`)
	f.wantMuster(0, apply, "version 2 after 1", "version 2 of motd DONE")
	f.waitHeld("motd.conf", "hello 2\n", web...)
	if n := f.versions("motd"); n != 3 {
		t.Errorf("%d versions", n)
	}
	eventually(t, 10*time.Second, "the bad one is told by events", func() bool {
		return events.count(func(e event) bool { return e.Rollout.ID == bad.ID && e.Rollout.State == "ROLLED_BACK" }) > 0
	})
}

// A rollout under way is watched, paused, taken on and aborted from elsewhere.
func TestRolloutIsSteered(t *testing.T) {
	t.Parallel()
	f, s, _ := startHeld(t)
	start := func(version string, flags ...string) string {
		t.Helper()
		args := append([]string{"configs", "rollout", "start", "motd", "--version", version, "--canary", "1", "--batch", "1", "--pause-between", "1h", "--detach"}, flags...)
		return strings.TrimSpace(f.wantMuster(0, args))
	}
	s.write("motd", "hello 2\n")
	f.wantMuster(0, []string{"configs", "put", "motd", filepath.Join(s.dir, "motd")}, "motd: version 2")
	f.wantMuster(0, []string{"configs", "put", "motd", filepath.Join(s.dir, "motd")}, "version 2 is the same")
	f.wantMuster(0, []string{"configs", "rollout", "start", "motd", "--dry-run"}, "version 2 would go to 3 agents, 3 of them have another; nothing was changed")

	id := start("2")
	f.waitHeld("motd.conf", "hello 2\n", "web-1")
	watch := startProcess(t, "watch", f.operator("configs", "rollout", "watch", id))
	eventually(t, 10*time.Second, "the watch shows the canary", func() bool { return strings.Contains(watch.logTail(), "1/3  waiting 2, applied 1") })
	f.wantMuster(0, []string{"configs", "rollout", "pause", id, "--reason", "lunch"}, "PAUSED, waiting 2, applied 1")
	eventually(t, 10*time.Second, "the watch shows the pause", func() bool { return strings.Contains(watch.logTail(), "PAUSED: lunch") })
	f.wantMuster(0, []string{"configs", "rollout", "resume", id}, "RUNNING")
	f.wantMuster(0, []string{"configs", "rollout", "abort", id, "--reason", "no"})
	watch.wantExit(20*time.Second, 3)
	f.waitHeld("motd.conf", "hello 1\n", "web-1", "web-2", "web-3")
	f.wantMuster(0, []string{"configs", "show", "motd"}, "group web version 1")

	// Ctrl-C leaves it running, and apply joins what is under way.
	id = start("2")
	watch = startProcess(t, "watch", f.operator("configs", "rollout", "watch", id))
	eventually(t, 10*time.Second, "the watch shows the canary", func() bool { return strings.Contains(watch.logTail(), "1/3") })
	watch.signal(syscall.SIGINT)
	watch.wantExit(5*time.Second, 130)
	s.write("configs/motd.txt", "hello 2\n")
	f.wantMuster(0, []string{"apply", "-f", s.dir, "--detach"}, "rollout "+id+" goes on")
	if got := f.lastRollout("motd"); got.ID != id || got.State != "RUNNING" {
		t.Errorf("%+v", got)
	}

	// A newer one takes its place.
	f.wantMuster(0, []string{"configs", "rollout", "start", "motd", "--version", "2"}, "DONE: applied 3")
	f.wantMuster(3, []string{"configs", "rollout", "watch", id}, "SUPERSEDED")
}

// Who is offline is not waited for; when it is back it gets what the others have.
func TestRolloutGoesOnWithoutTheOffline(t *testing.T) {
	t.Parallel()
	f, s, agents := startHeld(t)
	agents["web-3"].signal(syscall.SIGTERM)
	agents["web-3"].wantExit(10*time.Second, 0)
	eventually(t, 10*time.Second, "web-3 is offline", func() bool { return f.statuses()["web-3"] == "OFFLINE" })
	s.write("configs/motd.txt", "hello 2\n")
	f.wantMuster(3, []string{"apply", "-f", s.dir}, "applied 2, skipped 1", "web-3  SKIPPED")
	f.waitHeld("motd.conf", "hello 2\n", "web-1", "web-2")
	f.startAgent("web-3", "--tag", "role=web", "--allow", "hooks")
	f.waitHeld("motd.conf", "hello 2\n", "web-3")
	eventually(t, 10*time.Second, "all are told to hold it", func() bool {
		out, _, _ := f.muster("configs", "show", "motd")
		return strings.Contains(out, "applied 3")
	})
	f.wantMuster(0, []string{"apply", "-f", s.dir}, "nothing to do")
}
