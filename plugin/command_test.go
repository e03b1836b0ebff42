package plugin

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lines(text string) (json.RawMessage, error) {
	var l Lines
	for _, b := range []byte(text) { // the cruellest cut into pieces
		_, _ = l.Write([]byte{b})
	}
	return l.Result()
}

func TestC071Output(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, result, err string }{
		{"result", `{"result":{"n":9007199254740993}}` + "\n", `{"n":9007199254740993}`, ""},
		{"no newline at the end", `{"result":1}`, `1`, ""},
		{"empty lines and CRLF", "\r\n\n{\"progress\":0.5}\r\n{\"result\":null}\r\n\n", `null`, ""},
		{"resource", `{"resource":{"kind":"x"}}` + "\n" + `{"result":"é"}`, `"é"`, ""},
		{"number of 10,000 digits", `{"result":` + strings.Repeat("9", 10000) + `}`, strings.Repeat("9", 10000), ""},
		{"lone surrogate, as JSON spells it", `{"result":"\ud800"}`, `"\ud800"`, ""},

		{"nothing", "", "", "no {"},
		{"progress only", `{"progress":1}`, "", "no {"},
		{"log line after the result", `{"result":1}` + "\nbye\n", "", "line 2 follows"},
		{"two results", `{"result":1}` + "\n" + `{"result":1}`, "", "line 2 follows"},
		{"two values in a line", `{"result":1}{"result":2}`, "", "not JSON"},
		{"two keys", `{"result":1,"progress":2}`, "", "more than one key"},
		{"one key twice", `{"result":1,"result":2}`, "", "more than one key"},
		{"no key", `{}`, "", "without a key"},
		{"unknown key", `{"rseult":1}`, "", `unknown key "rseult"`},
		{"other case", `{"Result":1}`, "", "unknown key"},
		{"log line first", "hello\n" + `{"result":1}`, "", "line 1: not JSON"},
		{"array", `[1]`, "", "not an object"},
		{"NaN", `{"result":NaN}`, "", "not JSON"},
		{"byte order mark", "\ufeff" + `{"result":1}`, "", "not JSON"},
		{"UTF-16", "\xff\xfe{\x00", "", "not UTF-8"},
		{"bad UTF-8 in a string", "{\"result\":\"\xff\"}", "", "not UTF-8"},
		{"50,000 deep", `{"result":` + strings.Repeat("[", 50000) + strings.Repeat("]", 50000) + `}`, "", "not JSON"},
		{"100,000 deep", `{"result":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`, "", "longer than"},
		{"cut", `{"result":{"a":`, "", "not JSON"},
		{"line too long", `{"result":"` + strings.Repeat("x", MaxLine) + `"}`, "", "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := lines(c.text)
			if c.err == "" && (err != nil || string(got) != c.result) {
				t.Errorf("got %.100s, %v", got, err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || got != nil) {
				t.Errorf("got %.100s, %v; want an error with %q", got, err, c.err)
			}
		})
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"progress":1}` + "\n" + `{"result":{"a":[1,2]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := lines(string(b)); err == nil && !json.Valid(got) {
			t.Errorf("result %q", got)
		}
	})
}

func TestRunCommandSpeaksTheContract(t *testing.T) {
	t.Parallel()
	path := writeFile(t, filepath.Join(t.TempDir(), "echo"), `#!/bin/sh
read -r command
echo '{"progress":{"percent":50}}'
echo "arg $1 for $MUSTER_COMMAND_ID on $MUSTER_AGENT_ID under contract $MUSTER_CONTRACT" >&2
printf '{"result":%s}\n' "$command"
`, 0o755)
	var progress string
	l := &Lines{Progress: func(m json.RawMessage) { progress = string(m) }}
	in := `{"id":"01J","type":"echo","agent_id":"a<1>","input":{"big":9007199254740993},"timeout":"1m30s"}`
	p := sh(t, "")
	p.Timeout = 90e9
	o, r := RunCommand(t.Context(), path, Command{ID: "01J", Type: "echo", AgentID: "a<1>", Input: json.RawMessage(`{"big":9007199254740993}`)}, l, p)
	if !o.OK() || r.Invalid != nil || string(r.Result) != in {
		t.Errorf("got %s, %v, %+v", r.Result, r.Invalid, o)
	}
	if progress != `{"percent":50}` {
		t.Errorf("progress %q", progress)
	}
	if got := string(o.Stderr.Kept); got != "arg run for 01J on a<1> under contract 1\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestRunCommandKeepsWhatWasWrong(t *testing.T) {
	t.Parallel()
	path := writeFile(t, filepath.Join(t.TempDir(), "bad"), "#!/bin/sh\necho oops\necho why >&2\nexit 3\n", 0o755)
	o, r := RunCommand(t.Context(), path, Command{ID: "01J"}, &Lines{}, sh(t, ""))
	if o.ExitCode != 3 || r.Invalid == nil || r.Result != nil || string(o.Stdout.Kept) != "oops\n" || string(o.Stderr.Kept) != "why\n" {
		t.Errorf("got %+v, %+v", o, r)
	}
}

// The files of JSONTestSuite, each as the result of a plugin. What the suite
// leaves open (i_…) is decided by UTF-8 and Go's reader; it must only not crash.
func TestC071JSONTestSuite(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../northbound/testdata/json/*.json")
	if err != nil || len(files) < 300 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var line bytes.Buffer // a value over several lines is no JSON line
		if json.Compact(&line, b) == nil {
			b = line.Bytes()
		}
		_, err = lines(`{"result":` + string(b) + `}`)
		if name := filepath.Base(file); (name[0] == 'y' && err != nil) || (name[0] == 'n' && err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
