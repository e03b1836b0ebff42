package plugin

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, c := range []struct{ name, script, want, err string }{
		{"in full", `echo '{"contract":1,"types":["x"],"version":"1.2","description":"what it does","input":{"type":"object"},"capabilities":["y"],"later":{}}'`,
			`[1 [x] 1.2 what it does {"type":"object"}  [y]]`, ""},
		{"contract as the environment spells it", `echo "{\"contract\":\"$MUSTER_CONTRACT\"}"`, "[1 []     []]", ""},
		{"nothing of itself", `echo '{}'`, "[1 []     []]", ""},
		{"another contract", `echo '{"contract":7}'`, "[7 []     []]", ""},
		{"several lines", `printf '{\n"version":\n"3"}\n\n'`, "[1 [] 3    []]", ""},

		{"nothing", ``, "", "printed nothing"},
		{"failed", `echo no such verb >&2; exit 2`, "", "exit code 2: no such verb"},
		{"crashed", `kill -SEGV $$`, "", "SIGSEGV"},
		{"words", `echo hello`, "", "not one JSON object"},
		{"two objects", `echo '{}{}'`, "", "not one JSON object"},
		{"half of one", `printf '{"version":'`, "", "not one JSON object"},
		{"an array", `echo '[]'`, "", "not one JSON object"},
		{"Latin-1", `printf '{"version":"\351"}'`, "", "not UTF-8"},
		{"another kind of version", `echo '{"version":1}'`, "", "version"},
		{"contract 0", `echo '{"contract":0}'`, "", "contract"},
		{"contract -1", `echo '{"contract":-1}'`, "", "contract"},
		{"contract 1e99", `echo '{"contract":1e99}'`, "", "contract"},
		{"without end", `yes '{"a":1}' | head -c 1000000`, "", "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(dir, fmt.Sprint(i)), "#!/bin/sh\nulimit -c 0\n[ \"$1\" = describe ] || exit 9\n"+c.script+"\n", 0o755)
			p := sh(t, "")
			p.Env = Environ("MUSTER_CONTRACT=1")
			d, err := Describe(t.Context(), path, p)
			if c.err == "" && (err != nil || fmt.Sprint(described(d)) != c.want) {
				t.Errorf("got %v, %v; want %s", described(d), err, c.want)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, %v; want an error with %q", d, err, c.err)
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		path := writeFile(t, filepath.Join(t.TempDir(), "hangs"), "#!/bin/sh\ntrap '' TERM\nsleep 1000 & wait; sleep 1000\n", 0o755)
		p := sh(t, "")
		if _, err := Describe(t.Context(), path, p); err == nil || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Errorf("got %v", err)
		}
		wantNoneLeft(t, p)
	})
	if _, err := Describe(t.Context(), filepath.Join(dir, "none"), Program{}); err == nil || !strings.Contains(err.Error(), NotFound) {
		t.Errorf("got %v", err)
	}
}

// described shows the schemas as text.
func described(d Description) []any {
	return []any{d.Contract, d.Types, d.Version, d.Description, string(d.Input), string(d.Result), d.Capabilities}
}

// A plain script takes any call for the order to do its work.
func TestPlainProgramsAreNotAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		want    bool
	}{
		"plain": {"#!/bin/sh\nreboot\n", false},
		"asks":  {"#!/bin/sh\ncase $1 in describe) echo '{}';; esac\n", true},
		"empty": {"", false},
		"far":   {strings.Repeat("x", 64<<10-4) + "describe", true}, // over the edge of a piece
		"cut":   {"describ", false},
	} {
		path := writeFile(t, filepath.Join(dir, name), c.content, 0o755)
		if got, err := Describes(path); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := contains(iotest.OneByteReader(strings.NewReader("xdescribex")), []byte("describe")); err != nil || !got {
		t.Errorf("byte by byte: %v, %v", got, err)
	}
	if _, err := Describes(filepath.Join(dir, "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}
