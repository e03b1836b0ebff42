package muster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/musterhq/muster/"

// who may import what; a path stands for all below it, too. Tests of a package
// are bound by the same rules.
var imports = []struct {
	what    string
	allowed []string // importers
}{
	{"github.com/go-zeromq/zmq4", []string{module + "bus"}},
	{"go.etcd.io/bbolt", []string{module + "coordinator/store/boltstore"}},
	{"github.com/labstack/echo", []string{module + "northbound"}},
	{module + "agentd", []string{module + "agentd", module + "cmd"}},
	{module + "coordinator", []string{module + "coordinator", module + "cmd"}},
	{module + "northbound", []string{module + "northbound", module + "cmd"}},
	{module + "bus", []string{module + "bus", module + "coordinator", module + "agentd", module + "cmd"}},
	{module + "plugin", []string{module + "plugin", module + "agentd", module + "cmd"}},
	{module + "cmd", []string{module + "cmd"}},
}

func TestImportsFollowTheHouse(t *testing.T) {
	seen := map[string]bool{}
	for _, edge := range edges(t) {
		from, to := edge[0], edge[1]
		for _, rule := range imports {
			if !within(to, rule.what) {
				continue
			}
			seen[rule.what] = true
			if !slices.ContainsFunc(rule.allowed, func(a string) bool { return within(from, a) }) {
				t.Errorf("%s imports %s", from, to)
			}
		}
		if within(from, module+"northbound") && strings.HasPrefix(to, module) && !within(to, module+"northbound") && !within(to, module+"proto") {
			t.Errorf("%s imports %s: it knows the services by their gRPC interface only", from, to)
		}
		if within(from, module+"proto") && strings.HasPrefix(to, module) && !within(to, module+"proto") {
			t.Errorf("%s imports %s: proto is everybody's ground", from, to)
		}
	}
	for _, what := range []string{"github.com/go-zeromq/zmq4", "go.etcd.io/bbolt", "github.com/labstack/echo", module + "bus"} {
		if !seen[what] {
			t.Errorf("nobody imports %s: this test sees nothing", what)
		}
	}
}

// In bus, zmq4 has two places: the connection and the handshake of CURVE.
func TestZmq4HasTwoPlaces(t *testing.T) {
	sources, err := filepath.Glob("bus/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, file := range sources {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), `"github.com/go-zeromq/zmq4`) {
			files = append(files, file)
		}
	}
	if want := []string{"bus/conn.go", "bus/curve.go"}; !slices.Equal(files, want) {
		t.Errorf("zmq4 is imported in %v, want %v", files, want)
	}
}

func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// edges gives who imports what, tests included.
func edges(t *testing.T) (all [][2]string) {
	t.Helper()
	const format = `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}
{{end}}{{range .TestImports}}{{$p}} {{.}}
{{end}}{{range .XTestImports}}{{$p}} {{.}}
{{end}}`
	out, err := exec.Command("go", "list", "-f", format, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if from, to, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all = append(all, [2]string{from, to})
		}
	}
	return all
}
