package agentd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// describing is a plugin that prints what describe gets, and a result.
func describing(says string) string {
	return "#!/bin/sh\ncase $1 in\ndescribe) " + says + ";;\nrun) echo '{\"result\":\"ran\"}';;\nesac\n"
}

// lastRegister waits for a Register that is as wanted.
func (c *fakeCoordinator) lastRegister(t *testing.T, what string, is func(*musterv1.Register) bool) (r *musterv1.Register) {
	t.Helper()
	c.until(t, what, func() bool {
		if len(c.registers) == 0 {
			return false
		}
		r = c.registers[len(c.registers)-1]
		return is(r)
	})
	return r
}

func pluginOf(r *musterv1.Register, name string) *musterv1.Plugin {
	for _, p := range r.Plugins {
		if p.Name == name {
			return p
		}
	}
	return &musterv1.Plugin{}
}

func TestInventoryOfPlugins(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	ran := filepath.Join(t.TempDir(), "ran")
	write := func(name, content string) { writeProgram(t, filepath.Join(dir, name), content) }
	write("good", describing(`printf %s '{"contract":1,"version":"1.2","description":"what\n it  does"}'`))
	write("plain", "#!/bin/sh\necho ran >>"+ran+"\necho '{\"result\":1}'\n")
	write("broken", describing(`echo oops >&2; exit 3`))
	write("foreign", describing(`echo '{"contract":2,"version":"9"}'`))
	write("misnamed", describing(`echo '{"types":["other"]}'`))
	write("exec", describing(`echo '{}'`))
	write(".hidden", describing(`echo '{}'`))
	write("readme.txt", "describe")
	write(strings.Repeat("n", 80), "#!/bin/sh\n")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(filepath.Join(dir, "readme.txt"), 0o644))
	must(os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	must(os.Symlink("/bin/sh", filepath.Join(dir, "away")))
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", PluginDir: dir, look: 10 * time.Millisecond})

	r := c.lastRegister(t, "a description", func(r *musterv1.Register) bool { return pluginOf(r, "good").Version != "" })
	if want := []string{"ping", "broken", "good", "misnamed", "plain"}; !slices.Equal(r.CommandTypes, want) {
		t.Errorf("types %q, want %q", r.CommandTypes, want)
	}
	for _, want := range []*musterv1.Plugin{
		{Name: "good", Version: "1.2", Description: "what it does", Contract: 1},
		{Name: "plain", Contract: 1},
		{Name: "broken", Contract: 1, Error: "describe: exit code 3: oops"},
		{Name: "foreign", Version: "9", Contract: 2, Error: `plugin "foreign" speaks contract 2, this agent speaks 1`},
		{Name: "misnamed", Contract: 1, Error: `describe: its types are ["other"]; the file's name is the type all the same`},
		{Name: "exec", Contract: 1, Error: `plugin "exec": the type of that name is built in`},
		{Name: "readme.txt", Contract: 1, Error: `plugin "readme.txt": not executable`},
		{Name: "folder", Contract: 1, Error: `plugin "folder": not a regular file`},
		{Name: "away", Contract: 1, Error: `plugin "away": is a link that leaves the plugin folder`},
	} {
		if got := pluginOf(r, want.Name); !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if len(r.Plugins) != 10 || pluginOf(r, ".hidden").Name != "" {
		t.Errorf("%d plugins: %v", len(r.Plugins), r.Plugins)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a plain script was run to describe itself")
	}
	for name, want := range map[string]musterv1.Target_State{
		"good": musterv1.Target_SUCCEEDED, "plain": musterv1.Target_SUCCEEDED, "broken": musterv1.Target_SUCCEEDED,
		"misnamed": musterv1.Target_SUCCEEDED, "foreign": musterv1.Target_REJECTED, "away": musterv1.Target_REJECTED,
	} {
		c.send(t, &musterv1.Command{Id: name, Type: name})
		if end := c.end(t, name); end.State != want {
			t.Errorf("%s: got %v", name, end)
		}
	}

	// What changes is told on the same link; what does not change is not.
	c.mu.Lock()
	peer, registers := c.peer, len(c.registers)
	c.mu.Unlock()
	write("good", describing(`echo '{"version":"1.3"}'`))
	c.lastRegister(t, "the new version", func(r *musterv1.Register) bool { return pluginOf(r, "good").Version == "1.3" })
	write("new", describing(`echo '{"version":"0.1"}'`))
	c.lastRegister(t, "the new plugin", func(r *musterv1.Register) bool {
		return pluginOf(r, "new").Version == "0.1" && slices.Contains(r.CommandTypes, "new")
	})
	must(os.Remove(filepath.Join(dir, "plain")))
	c.lastRegister(t, "one less", func(r *musterv1.Register) bool { return !slices.Contains(r.CommandTypes, "plain") })
	must(os.Chmod(filepath.Join(dir, "new"), 0o757))
	c.lastRegister(t, "a refused one", func(r *musterv1.Register) bool {
		return strings.Contains(pluginOf(r, "new").Error, "everyone") && !slices.Contains(r.CommandTypes, "new")
	})
	must(os.Rename(dir, dir+".away"))
	c.lastRegister(t, "an empty list", func(r *musterv1.Register) bool { return len(r.Plugins) == 0 && len(r.CommandTypes) == 1 })
	must(os.Rename(dir+".away", dir))
	c.lastRegister(t, "the plugins again", func(r *musterv1.Register) bool { return pluginOf(r, "good").Version == "1.3" })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peer != peer {
		t.Error("the link is another one")
	}
	// A file may be seen while it is written: once more for each write.
	if n := len(c.registers) - registers; n < 6 || n > 10 {
		t.Errorf("registered %d times", n)
	}
	for i, r := range c.registers[1:] {
		if r.SequenceNum <= c.registers[i].SequenceNum {
			t.Errorf("sequence %d after %d", r.SequenceNum, c.registers[i].SequenceNum)
		}
	}
}

func TestDescribesAreBounded(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	file := filepath.Join(t.TempDir(), "at-once")
	for i := range 6 {
		writeProgram(t, filepath.Join(dir, fmt.Sprint("p", i)), describing(`echo + >>`+file+`; sleep 0.1; echo - >>`+file+`; echo '{"version":"1"}'`))
	}
	writeProgram(t, filepath.Join(dir, "hangs"), describing(`trap "" TERM; sleep 600 & sleep 600`))
	writeProgram(t, filepath.Join(dir, "noise"), describing(`yes`))
	c := serve(t, n)
	agent := fmt.Sprint("bounded-", os.Getpid())
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: agent, PluginDir: dir})
	c.send(t, &musterv1.Command{Id: "1", Type: "hangs"}) // it works meanwhile
	c.end(t, "1")
	r := c.lastRegister(t, "the descriptions", func(r *musterv1.Register) bool { return pluginOf(r, "hangs").Error != "" })
	if got := pluginOf(r, "hangs").Error; got != "describe: no answer within 5s" {
		t.Errorf("error %q", got)
	}
	if got := pluginOf(r, "noise").Error; !strings.Contains(got, "no answer") && !strings.Contains(got, "at most") {
		t.Errorf("error %q", got)
	}
	b, _ := os.ReadFile(file)
	now, most := 0, 0
	for l := range strings.Lines(string(b)) {
		if l == "+\n" {
			now++
		} else {
			now--
		}
		most = max(most, now)
	}
	if most > describeAtOnce || len(b) != 6*4 {
		t.Errorf("%d at once: %q", most, b)
	}
	a.stop()
	if left := plugin.KillMarked("MUSTER_AGENT_ID=" + agent); left != 0 {
		t.Errorf("%d processes are left", left)
	}
}

// A folder with more than a Register can hold.
func TestRegisterFitsWithManyPlugins(t *testing.T) {
	dir := t.TempDir()
	for i := range 400 {
		writeProgram(t, filepath.Join(dir, fmt.Sprintf("%03d-%s", i, strings.Repeat("x", 60))), "#!/bin/sh\n")
		writeProgram(t, filepath.Join(dir, fmt.Sprintf("%03d-%s", i, strings.Repeat("x", 55))), "#!/bin/sh\n")
	}
	tags := map[string]string{}
	for i := range 15 {
		tags[fmt.Sprint(i)] = strings.Repeat("v", 1024)
	}
	a, err := New(Config{Dir: t.TempDir(), ID: "a", PluginDir: dir, Tags: tags, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, p := range a.plugins.plugins {
		p.Description = strings.Repeat("d", maxDescription)
	}
	for i := range 1000 {
		a.ledger.held[fmt.Sprint(i)] = &held{id: fmt.Sprintf("%026d", i), told: true, state: musterv1.Target_RUNNING}
	}
	m := a.describe(newFakeLink(1))
	if size := proto.Size(m); size > maxRegister || len(m.CommandTypes) != 1+maxPlugins || len(m.Plugins) != maxPlugins {
		t.Errorf("%d bytes, %d types, %d plugins", size, len(m.CommandTypes), len(m.Plugins))
	}
}
