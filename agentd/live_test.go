package agentd

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// waitFile is a shell command that waits until a file is there.
func waitFile(path string) string { return `; while ! [ -e ` + path + ` ]; do sleep 0.01; done; ` }

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOutputGoesUpWhileTheProgramRuns(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, OutputCap: 300 << 10})
	zeros := func(n string) string { return `head -c ` + n + ` /dev/zero | tr '\0' ` }
	c.send(t, shell("x", `printf one; printf err >&2`+waitFile(first)+zeros("100000")+"y"+waitFile(second)+zeros("400000")+"z; printf end"))
	c.until(t, "the first words", func() bool { return string(c.output["xSTDOUT"]) == "one" && string(c.output["xSTDERR"]) == "err" })
	touch(t, first)
	c.until(t, "more", func() bool { return len(c.output["xSTDOUT"]) == 100003 })
	c.cut(t) // all of it comes again
	c.note(func() { clear(c.output) })
	c.until(t, "all again", func() bool { return len(c.output["xSTDOUT"]) == 100003 && string(c.output["xSTDERR"]) == "err" })
	if c.told("x") != 0 {
		t.Fatal("it has ended: nothing is tested")
	}
	touch(t, second)
	end := c.end(t, "x")
	out := c.out("xSTDOUT")
	if end.State != musterv1.Target_SUCCEEDED || end.Stdout.Size != 500006 || int(end.Stdout.Kept) != len(out) || len(out) != 300<<10 || end.Stdout.Head != 150<<10 {
		t.Errorf("%d bytes; %v", len(out), end)
	}
	want := append([]byte("one"), bytes.Repeat([]byte("y"), 100000)...)
	want = append(want, bytes.Repeat([]byte("z"), 150<<10-len(want)+150<<10-3)...)
	if want = append(want, "end"...); out != string(want) {
		t.Error("the output is another one")
	}
	if got := c.out("xSTDERR"); got != "err" {
		t.Errorf("stderr %q", got)
	}
}

// Small pieces are collected: 100 writes are not 100 messages.
func TestOutputIsCollected(t *testing.T) {
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}})
	began := time.Now()
	c.send(t, shell("x", `for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do echo $i$j; sleep 0.005; done; done`))
	c.end(t, "x")
	most := int(time.Since(began)/liveEvery) + 2
	if out := c.out("xSTDOUT"); len(out) != 300 {
		t.Errorf("output %q", out)
	}
	c.note(func() {
		if c.chunks < 2 || c.chunks > most {
			t.Errorf("%d chunks, want 2 to %d", c.chunks, most)
		}
	})
}

// A link that takes nothing holds up no program, and gets no more than it takes.
func TestSlowLinkSlowsNoProgram(t *testing.T) {
	files, err := openOutputs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := newOutbox(files, testLog(t), newMetrics(nil))
	_, stop := start(t.Context(), o.run)
	defer stop()
	link := newFakeLink(2)
	o.use(link)
	p := plugin.Program{
		Args:  []string{"/bin/sh", "-c", "head -c 20000000 /dev/zero"},
		Live:  func(stdout, stderr plugin.Head) { o.watch("a", stdout, stderr) },
		Grown: func() { o.grown("a") },
	}
	began := time.Now()
	out := plugin.Run(t.Context(), p)
	if took := time.Since(began); took > 5*time.Second || !out.OK() || out.Stdout.Size != 20_000_000 {
		t.Errorf("took %v: %+v", took, out.Cause)
	}
	until(t, "what the link takes", func() bool { link.mu.Lock(); defer link.mu.Unlock(); return len(link.sent) == 2 })
	o.unwatch("a")
	a := final("a")
	if err := files.save(a, out.Stdout, out.Stderr); err != nil {
		t.Fatal(err)
	}
	o.tell(a)
	// all reads until the Target, and returns how many bytes came before.
	all := func() (n int) {
		t.Helper()
		for {
			var ms []proto.Message
			until(t, "more", func() bool { ms = link.take(); return len(ms) > 0 })
			for _, m := range ms {
				switch m := m.(type) {
				case *musterv1.OutputChunk:
					if int(m.Offset) != n {
						t.Fatalf("a chunk at %d, have %d", m.Offset, n)
					}
					n += len(m.Data)
				case *musterv1.Target:
					return n
				}
			}
		}
	}
	if n := all(); n != 1<<20 {
		t.Errorf("%d bytes came", n)
	}
	o.refused("a") // one was not stored: all of it again, from 0
	if n := all(); n != 1<<20 {
		t.Errorf("%d bytes came the second time", n)
	}
}

// What a second run says must not be mixed up with what the first one said.
func TestSecondRunIsNotHeardBeforeItsEnd(t *testing.T) {
	a := &Agent{}
	if r := a.newRun(&held{id: "x"}, "mark", false, nil); r.live == nil || r.grown == nil {
		t.Error("a first run is not heard")
	}
	if r := a.newRun(&held{id: "x"}, "mark", true, nil); r.live != nil || r.grown != nil {
		t.Error("a second run is heard")
	}
}
