package agentd

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestExecInput(t *testing.T) {
	t.Parallel()
	a := &Agent{id: "a"}
	parse := func(in string) (*execJob, error) {
		c := &musterv1.Command{Id: "x", Type: "exec", Input: []byte(in)}
		j, err := newExec(c, a.program(c), a.asked(c).Environment())
		if err != nil {
			return nil, err
		}
		return j.(*execJob), nil
	}
	j, err := parse(`{"argv":["a","$(id)","\ud83d\ude00",""],"env":{"LD_PRELOAD":"x","PATH":"/bin"},"dir":"/tmp","stdin":"in"}`)
	if err != nil {
		t.Fatal(err)
	}
	p := run{}.of(j.program, j.env)
	if !slices.Equal(p.Args, []string{"a", "$(id)", "😀", ""}) || p.Dir != "/tmp" || string(p.Stdin) != "in" ||
		!slices.Contains(p.Env, "LD_PRELOAD=x") || !slices.Contains(p.Env, "PATH=/bin") || !slices.Contains(p.Env, "MUSTER_COMMAND_ID=x") {
		t.Errorf("got %q in %s with %q", p.Args, p.Dir, p.Env)
	}
	for in, want := range map[string]string{
		``:                                     "input.argv",
		`{}`:                                   "input.argv",
		`[]`:                                   "object",
		`null`:                                 "object",
		`{"argv":["a"]} {}`:                    "JSON",
		`{"argv":[]}`:                          "input.argv",
		`{"argv":[""]}`:                        "input.argv[0]",
		`{"argv":null}`:                        "input.argv: want an array",
		`{"argv":"ls"}`:                        "input.argv: want an array",
		`{"argv":["a",1]}`:                     "input.argv[1]",
		`{"argv":["a",null]}`:                  "input.argv[1]",
		`{"argv":["a"],"argv":["b"]}`:          "input.argv: given twice",
		`{"ARGV":["a"]}`:                       "input.ARGV: unknown key",
		`{"argv":["a"],"shell":true}`:          "input.shell: unknown key",
		`{"argv":["a\u0000b"]}`:                "input.argv[0]: a NUL",
		`{"argv":["a"],"dir":"tmp"}`:           "input.dir",
		`{"argv":["a"],"dir":"/a\u0000"}`:      "input.dir",
		`{"argv":["a"],"dir":5}`:               "input.dir: want a string",
		`{"argv":["a"],"stdin":null}`:          "input.stdin",
		`{"argv":["a"],"env":[]}`:              "input.env",
		`{"argv":["a"],"env":{"A=B":"x"}}`:     "input.env",
		`{"argv":["a"],"env":{"":"x"}}`:        "input.env",
		`{"argv":["a"],"env":{"A":1}}`:         "input.env.A: want a string",
		`{"argv":["a"],"env":{"A":"\u0000"}}`:  "input.env.A: a NUL",
		`{"argv":["a"],"env":{"A":"","A":""}}`: "input.env.A: given twice",
		`{"argv":["a"],"env":{"MUSTER_X":""}}`: "reserved",
		`{"argv":["\ud800"]}`:                  "surrogate",
		`{"argv":["\udc00\ud800"]}`:            "surrogate",
		"{\"argv\":[\"\xff\"]}":                "UTF-8",
	} {
		if _, err := parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
	for _, in := range []string{`{"argv":["\\ud800"]}`, `{"argv":["\ufffd"]}`} {
		if _, err := parse(in); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestC071C073PluginsOfAnAgent(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	for name, script := range map[string]string{
		"good":   `read -r c; printf '{"progress":1}\n{"result":%s}\n' "$c"`,
		"noise":  `echo hello; echo why >&2`,
		"failed": `echo '{"result":{"partial":true}}'; echo broken >&2; exit 4`,
		"crash":  `printf '{"result":'; kill -SEGV $$`,
		"exec":   `echo '{"result":"never"}'`, // a name that is built in
	} {
		writeProgram(t, filepath.Join(dir, name), "#!/bin/sh\nulimit -c 0\n"+script+"\n")
	}
	writeProgram(t, filepath.Join(dir, "lost"), "#!/no/such/interpreter\n")
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", PluginDir: dir})
	for _, p := range []struct {
		name           string
		state          musterv1.Target_State
		reason, result string
	}{
		{"good", musterv1.Target_SUCCEEDED, "", `"input":{"n":9007199254740993}`},
		{"noise", musterv1.Target_FAILED, "invalid output: line 1: not JSON; it said: why", ""},
		{"failed", musterv1.Target_FAILED, "broken", `{"partial":true}`},
		{"crash", musterv1.Target_FAILED, "SIGSEGV", ""},
		{"lost", musterv1.Target_FAILED, "interpreter not found", ""},
		{"exec", musterv1.Target_REJECTED, "--allow exec", ""},
		{"none", musterv1.Target_REJECTED, "no command type", ""},
	} {
		c.send(t, &musterv1.Command{Id: p.name, Type: p.name, Input: []byte(`{"n":9007199254740993}`)})
		end := c.end(t, p.name)
		if end.State != p.state || !strings.Contains(end.Reason, p.reason) || !strings.Contains(string(end.Result), p.result) {
			t.Errorf("%s: got %v", p.name, end)
		}
	}
	if got := c.registered(t).CommandTypes; !slices.Equal(got, []string{"ping", "crash", "failed", "good", "lost", "noise"}) {
		t.Errorf("types %q", got)
	}
}
