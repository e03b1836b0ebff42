//go:build long

package plugin

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// long lets tests take minutes.
const long = true

// memory is what this process has in use, as the system sees it.
func memory(t *testing.T) int64 {
	t.Helper()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages := int64(0)
	for _, c := range strings.Fields(string(b))[1] {
		pages = 10*pages + int64(c-'0')
	}
	return pages * int64(os.Getpagesize())
}

// Four programs at once that write 1 GiB each, and what they leave in memory.
func TestC070WritesOneGiB(t *testing.T) {
	const gib = 1 << 30
	before := memory(t)
	most, stop := int64(0), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, memory(t))
			case <-stop:
				return
			}
		}
	})
	var all sync.WaitGroup
	for _, c := range []struct {
		script         string
		stdout, stderr int64
	}{
		{`head -c 1073741824 /dev/zero`, gib, 0},
		{`head -c 1073741824 /dev/zero >&2`, 0, gib},
		{`head -c 1073741824 /dev/zero & head -c 1073741824 /dev/zero >&2; wait; exit 3`, gib, gib},
	} {
		all.Go(func() {
			p := sh(t, c.script)
			p.Timeout = 10 * time.Minute
			o := Run(t.Context(), p)
			if o.Cause != Exited || o.Stdout.Size != c.stdout || o.Stderr.Size != c.stderr || (o.ExitCode == 3) != (c.stdout == c.stderr) {
				t.Errorf("%s: code %d, cause %v, sizes %d and %d", c.script, o.ExitCode, o.Cause, o.Stdout.Size, o.Stderr.Size)
			}
		})
	}
	all.Go(func() { // a plugin with one line of 100 MiB
		path := writeFile(t, filepath.Join(t.TempDir(), "line"), "#!/bin/sh\nprintf '{\"result\":\"'\nhead -c 104857600 /dev/zero | tr '\\0' x\nprintf '\"}'\n", 0o755)
		o, r := RunCommand(t.Context(), path, Command{ID: "1"}, &Lines{}, sh(t, ""))
		if !o.OK() || r.Invalid == nil || !strings.Contains(r.Invalid.Error(), "longer than") || o.Stdout.Size != 100<<20+13 {
			t.Errorf("got %v, %d bytes, code %d", r.Invalid, o.Stdout.Size, o.ExitCode)
		}
	})
	all.Wait()
	p := sh(t, `yes`)
	p.Timeout = 5 * time.Second
	if o := Run(t.Context(), p); o.Cause != TimedOut || o.End.Sub(o.Start) > p.Timeout+p.Grace+2*time.Second {
		t.Errorf("endless: %v after %v", o.Cause, o.End.Sub(o.Start))
	}
	close(stop)
	watch.Wait()
	if grew := most - before; grew > 64<<20 {
		t.Errorf("memory grew by %d MiB", grew>>20)
	}
}
