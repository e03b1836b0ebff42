package agentd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startConfigChild runs an agent that takes configs in a process of its own:
//
//	AGENTD_TEST_ROOT   its config root
//	AGENTD_TEST_STEPS  a file for the names of the steps that it is at …
//	AGENTD_TEST_STEP   … and the one at which it stops for ever
//	AGENTD_TEST_MOUNT  what it has mounted: KIND:SOURCE:TARGET, separated by commas
//	AGENTD_TEST_USER   who it is, if root runs the tests
func startConfigChild(t *testing.T, dir, endpoint, root string, env ...string) *child {
	t.Helper()
	return startChild(t, dir, endpoint, append(env, "AGENTD_TEST_ROOT="+root)...)
}

// newConfigChild starts one with mounts of its own.
func newConfigChild(t *testing.T, mounts func(root, data string) string) (*configRig, *child) {
	t.Helper()
	ln, endpoint := listen(t)
	r := &configRig{t: t, c: serve(t, ln), root: t.TempDir()}
	r.cfg.Dir = t.TempDir()
	child := startConfigChild(t, r.cfg.Dir, endpoint, r.root, "AGENTD_TEST_MOUNT="+mounts(r.root, r.cfg.Dir))
	r.seen = fmt.Sprintf("/proc/%d/root%s", child.cmd.Process.Pid, r.root)
	return r, child
}

// takeConfigs is what the child does about it.
func takeConfigs(cfg *Config) {
	cfg.ConfigRoot = os.Getenv("AGENTD_TEST_ROOT")
	if cfg.ConfigRoot == "" {
		return
	}
	cfg.Allow = append(cfg.Allow, "hooks")
	cfg.retry = 100 * time.Millisecond
	if file := os.Getenv("AGENTD_TEST_STEPS"); file != "" {
		cfg.steps = func(step string) {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
			if err == nil {
				fmt.Fprintln(f, step)
				f.Close()
			}
			if step == os.Getenv("AGENTD_TEST_STEP") {
				fmt.Println("held")
				select {}
			}
			time.Sleep(2 * time.Millisecond) // so that it can be hit
		}
	}
}

func limitConfigs() error {
	if all := os.Getenv("AGENTD_TEST_MOUNT"); all != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		for m := range strings.SplitSeq(all, ",") {
			if err := mount(strings.Split(m, ":")); err != nil {
				return fmt.Errorf("mount %s: %w", m, err)
			}
		}
	}
	if id, _ := strconv.Atoi(os.Getenv("AGENTD_TEST_USER")); id > 0 && os.Geteuid() == 0 {
		if err := unix.Setgroups(nil); err != nil {
			return err
		}
		if err := unix.Setgid(id); err != nil {
			return err
		}
		return unix.Setuid(id)
	}
	return nil
}

func mount(m []string) error {
	switch kind, source, target := m[0], m[1], m[2]; kind {
	case "tmpfs":
		return unix.Mount("tmpfs", target, "tmpfs", 0, "size="+source+",mode=700")
	case "readonly":
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	default:
		return unix.Mount(source, target, "", unix.MS_BIND, "")
	}
}
