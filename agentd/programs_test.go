package agentd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func hanging(id string, timeout time.Duration) *musterv1.Command {
	m := shell(id, "sleep 600")
	m.Timeout = durationpb.New(timeout)
	return m
}

func TestC040TimeoutFreesTheQueue(t *testing.T) {
	const timeout = time.Second
	quick := func(t *testing.T, c *fakeCoordinator, began time.Time) {
		t.Helper()
		for i := range 10 {
			if end := c.end(t, fmt.Sprint("q", i)); end.State != musterv1.Target_SUCCEEDED {
				t.Errorf("got %v", end)
			}
		}
		if took := time.Since(began); took > timeout+10*time.Second {
			t.Errorf("the quick ones took %v", took)
		}
	}
	pings := func() (ms []*musterv1.Command) {
		for i := range 10 {
			ms = append(ms, ping(fmt.Sprint("q", i)))
		}
		return ms
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		n := bustest.NewNet()
		c := serve(t, n)
		runAgent(t, n, Config{Dir: t.TempDir(), ID: "c040", Allow: []string{"exec"}, Parallel: 1})
		began := time.Now()
		c.send(t, append([]*musterv1.Command{hanging("h", timeout)}, pings()...)...)
		wantEnd(t, c.end(t, "h"), musterv1.Target_TIMED_OUT, "timeout")
		quick(t, c, began)
	})
	t.Run("the link is cut during it", func(t *testing.T) {
		t.Parallel()
		n := bustest.NewNet()
		c := serve(t, n)
		runAgent(t, n, Config{Dir: t.TempDir(), ID: "c040", Allow: []string{"exec"}, Parallel: 1})
		began := time.Now()
		c.send(t, append([]*musterv1.Command{hanging("h", timeout)}, pings()...)...)
		c.waitFor(t, "q9", musterv1.Target_RECEIVED)
		c.cut(t)
		wantEnd(t, c.end(t, "h"), musterv1.Target_TIMED_OUT, "timeout")
		quick(t, c, began)
	})
	t.Run("the agent is killed during it", func(t *testing.T) {
		t.Parallel()
		ln, endpoint := listen(t)
		c := serve(t, ln)
		dir := t.TempDir()
		agent := startChild(t, dir, endpoint)
		for i := range 4 { // as many as run at once
			c.send(t, hanging(fmt.Sprint("h", i), timeout))
		}
		c.send(t, pings()...)
		c.waitFor(t, "h3", musterv1.Target_RUNNING)
		c.waitFor(t, "q9", musterv1.Target_RECEIVED)
		agent.kill()
		began := time.Now()
		startChild(t, dir, endpoint)
		for i := range 4 {
			if end := c.end(t, fmt.Sprint("h", i)); end.State != musterv1.Target_INTERRUPTED && end.State != musterv1.Target_TIMED_OUT {
				t.Errorf("got %v", end)
			}
		}
		quick(t, c, began)
	})
}

func TestC067ManyThatHang(t *testing.T) {
	n, many, timeout := bustest.NewNet(), 20, 300*time.Millisecond
	if long {
		many, timeout = 50, 3*time.Second
	}
	c := serve(t, n)
	c.interval = 100 * time.Millisecond
	agent := fmt.Sprint("c067-", os.Getpid())
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: agent, Allow: []string{"exec"}})
	for i := range many {
		c.send(t, hanging(fmt.Sprint("h", i), timeout))
	}
	for i := range many {
		end := c.end(t, fmt.Sprint("h", i))
		if took := end.EndTime.AsTime().Sub(end.StartTime.AsTime()); end.State != musterv1.Target_TIMED_OUT || took < timeout || took > timeout+10*time.Second {
			t.Errorf("after %v: %v", took, end)
		}
	}
	began := time.Now()
	for i := range 10 {
		c.send(t, shell(fmt.Sprint("q", i), "true"))
	}
	for i := range 10 {
		c.end(t, fmt.Sprint("q", i))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the quick ones took %v", took)
	}
	if left := plugin.KillMarked("MUSTER_AGENT_ID=" + agent); left != 0 {
		t.Errorf("%d processes are left", left)
	}
	c.note(func() {
		if len(c.registers) != 1 {
			t.Errorf("the agent registered %d times: the link broke", len(c.registers))
		}
	})
	a.stop()
}

func TestC073PluginGoneBeforeItsTurn(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	for _, name := range []string{"gone", "folder", "plain"} {
		writeProgram(t, filepath.Join(dir, name), "#!/bin/sh\necho '{\"result\":1}'\n")
	}
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "c073", Allow: []string{"exec"}, PluginDir: dir, Parallel: 1})
	file := filepath.Join(t.TempDir(), "go")
	c.send(t, shell("first", "true"+waitFile(file)))
	for _, name := range []string{"gone", "folder", "plain"} {
		c.send(t, &musterv1.Command{Id: name, Type: name})
		c.waitFor(t, name, musterv1.Target_RECEIVED)
	}
	for _, err := range []error{
		os.Remove(filepath.Join(dir, "gone")), os.Remove(filepath.Join(dir, "folder")), os.Mkdir(filepath.Join(dir, "folder"), 0o755),
		os.Chmod(filepath.Join(dir, "plain"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	touch(t, file)
	wantEnd(t, c.end(t, "gone"), musterv1.Target_FAILED, plugin.NotFound)
	wantEnd(t, c.end(t, "folder"), musterv1.Target_FAILED, plugin.IsDirectory)
	wantEnd(t, c.end(t, "plain"), musterv1.Target_FAILED, plugin.Permission)
}

func TestC079NamesOutsideTheFolderOfAnAgent(t *testing.T) {
	root, n := t.TempDir(), bustest.NewNet()
	ran := filepath.Join(root, "ran")
	dir := filepath.Join(root, "plugins")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho ran >>" + ran + "\n"
	for _, path := range []string{"evil", "plugins/open", "plugins/.hidden", "plugins/good"} {
		writeProgram(t, filepath.Join(root, path), script)
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o777); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"shell": "/bin/sh", "up": "../evil"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "c079", PluginDir: dir})
	for i, name := range []string{
		"../evil", "../../bin/sh", "/bin/sh", "a/../../evil", ".", "..", "", "good\x00", "up", "shell", "open", ".hidden", "GOOD", "..%2fevil", "%2e%2e/evil", "good/", "./good",
	} {
		id := fmt.Sprint("n", i)
		c.send(t, &musterv1.Command{Id: id, Type: name, Input: []byte(`{}`)})
		if end := c.end(t, id); end.State != musterv1.Target_REJECTED || end.Reason == "" {
			t.Errorf("%q: got %v", name, end)
		}
	}
	if b, err := os.ReadFile(ran); err == nil {
		t.Errorf("something was executed: %q", b)
	}
	types := c.registered(t).CommandTypes
	if strings.Join(types, " ") != "ping good" {
		t.Errorf("types %q", types)
	}
}

func TestC113OldIdsDoNotRunAgain(t *testing.T) {
	n := bustest.NewNet()
	ran := filepath.Join(t.TempDir(), "ran")
	many := 1000 // as many as are remembered
	if long {
		many = 10_000
	}
	c := serve(t, n)
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "c113", Allow: []string{"exec"}, window: many})
	id := func(i int) string { return fmt.Sprintf("id-%08d", i) }
	first := shell(id(0), "echo ran >>"+ran)
	c.send(t, first)
	c.end(t, id(0))
	c.send(t, first)
	again := func(done int) {
		t.Helper()
		c.send(t, first, ping(id(done+1)))
		c.end(t, id(done+1))
		if b, _ := os.ReadFile(ran); string(b) != "ran\n" {
			t.Fatalf("after %d commands the file says %q", done, b)
		}
	}
	const batch = 200
	for i := 1; i <= many; i += batch {
		for j := i; j < i+batch; j++ {
			c.send(t, ping(id(j)))
		}
		c.until(t, "a batch", func() bool { return c.ends >= i+batch })
		c.note(func() { c.targets = nil })
	}
	again(many)
	until(t, "all to be settled", func() bool { a.ledger.mu.Lock(); defer a.ledger.mu.Unlock(); return len(a.ledger.held) == 0 })
}
