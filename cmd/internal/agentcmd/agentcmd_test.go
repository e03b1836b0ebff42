package agentcmd

import (
	"maps"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestEveryFlagHasItsVariable(t *testing.T) {
	for _, f := range Flags() {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok || len(doc.GetEnvVars()) == 0 || !strings.HasPrefix(doc.GetEnvVars()[0], "MUSTER_") {
			t.Errorf("--%s has no MUSTER_ variable", f.Names()[0])
		}
	}
}

func TestTags(t *testing.T) {
	t.Setenv("REGION", "north")
	t.Setenv("EMPTY", "")
	got, err := tagsOf([]string{"REGION", "EMPTY", "NOT_SET"}, []string{"env=prod", "expr=a=b", "REGION=south"})
	want := map[string]string{"REGION": "south", "EMPTY": "", "env": "prod", "expr": "a=b"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "novalue", "=x"} {
		if _, err := tagsOf(nil, []string{bad}); err == nil {
			t.Errorf("%q was taken for a tag", bad)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for _, good := range []string{"tcp://127.0.0.1:7600", "tcp://muster.example:7600", "tcp://[::1]:7600", "ipc:///run/muster.sock"} {
		if err := checkEndpoint(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "nonsense", "127.0.0.1:7600", "tcp://127.0.0.1", "tcp://:7600", "tcp://host:", "http://host:80", "ipc://"} {
		if checkEndpoint(bad) == nil {
			t.Errorf("%q was taken for an endpoint", bad)
		}
	}
}
