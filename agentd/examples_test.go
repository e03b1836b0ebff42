package agentd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// The plugins that come with muster, and one made with plugin.Main, in an agent.
func TestExamplePlugins(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"disk-usage", "host-load"} {
		b, err := os.ReadFile(filepath.Join("../examples/plugins", name))
		if err != nil {
			t.Fatal(err)
		}
		writeProgram(t, filepath.Join(dir, name), string(b))
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "greet"), "./testdata/greet").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := bustest.NewNet()
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", PluginDir: dir})
	r := c.lastRegister(t, "the descriptions", func(r *musterv1.Register) bool { return pluginOf(r, "disk-usage").Version != "" })
	for _, p := range r.Plugins {
		if p.Version != "1.0" || p.Description == "" || p.Contract != 1 || p.Error != "" {
			t.Errorf("got %v", p)
		}
	}
	for i, s := range []struct {
		name, input  string
		state        musterv1.Target_State
		result, says string
	}{
		{"disk-usage", `{"paths":["/","/proc"]}`, musterv1.Target_SUCCEEDED, `"/proc"`, ""},
		{"disk-usage", ``, musterv1.Target_SUCCEEDED, `"used_percent"`, ""},
		{"disk-usage", `{"full_at":0}`, musterv1.Target_FAILED, `"/"`, "% full"},
		{"disk-usage", `{"paths":["/no/such"]}`, musterv1.Target_FAILED, "", "No such file"},
		{"disk-usage", `{"pahts":[]}`, musterv1.Target_FAILED, "", "unknown key 'pahts'"},
		{"host-load", ``, musterv1.Target_SUCCEEDED, `"uptime_seconds"`, ""},
		{"greet", `{"name":"wörld"}`, musterv1.Target_SUCCEEDED, `{"hello":"wörld"}`, ""},
		{"greet", `{}`, musterv1.Target_FAILED, "", "input.name"},
	} {
		id := s.name + string(rune('0'+i))
		c.send(t, &musterv1.Command{Id: id, Type: s.name, Input: []byte(s.input)})
		end := c.end(t, id)
		if end.State != s.state || !strings.Contains(string(end.Result), s.result) || !strings.Contains(end.Reason, s.says) || len(end.Result) > 0 && !json.Valid(end.Result) {
			t.Errorf("%s %s: got %v", s.name, s.input, end)
		}
	}
}
