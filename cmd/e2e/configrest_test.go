package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A config's name never becomes a path: REST refuses what is not a name, in
// whatever way it is written, and what is one, however odd, is a file of that
// name below the agent's config folder.
func TestC088ConfigNamesOverREST(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	b, err := os.ReadFile("../../coordinator/testdata/blns.json")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		t.Fatal(err)
	}
	names = append(names, "../x", "/etc/x", "a/../../x", "..", ".", ".x", "x/", `..\x`, "x\x00", "x\n", "x ", "e\u0301", "\u00e9", "CON", "x.", strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 300))
	form := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	before := f.filesOutside("a1")
	var good []string
	for _, name := range names {
		path := "/v1/configs/" + url.PathEscape(name)
		status, answer, err := f.ask("PUT", path, `{"kind":"PIPELINE"}`)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if !form.MatchString(name) {
			if status < 400 || status > 499 {
				t.Errorf("%q: %d %s", name, status, answer)
			}
			continue
		}
		if status != http.StatusOK {
			t.Errorf("%q: %d %s", name, status, answer)
			continue
		}
		if !slices.Contains(good, name) {
			f.do("POST", path+"/versions", `{"content":"`+"eA=="+`"}`, http.StatusCreated, new(any))
			good = append(good, name)
		}
		var shown struct{ Name string }
		f.do("GET", path, "", http.StatusOK, &shown)
		if shown.Name != name {
			t.Errorf("%q is shown as %q", name, shown.Name)
		}
	}
	if len(good) < 20 {
		t.Fatalf("only %d names are good", len(good))
	}
	good = good[:20]
	for _, name := range good {
		f.do("PUT", "/v1/configs/"+name, `{"bindings":[{"fleet":true,"version":1}]}`, http.StatusOK, new(any))
	}
	for _, name := range good {
		f.waitHeld(name, "x", "a1")
	}
	if after := f.filesOutside("a1"); !slices.Equal(before, after) {
		t.Errorf("files outside the config folder:\n%q\nbefore\n%q", after, before)
	}
	// The same for where the file goes.
	for _, path := range []string{"../x", "/etc/x", "a/../../x", "..", ".", "a//b", `a\b`, "a/", "x\u0000", strings.Repeat("x/", 600)} {
		body, err := json.Marshal(map[string]any{"content": "eA==", "file": map[string]string{"path": path}})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer, _ := f.ask("POST", "/v1/configs/"+good[0]+"/versions", string(body)); status != 422 || !strings.Contains(string(answer), `"file.path"`) {
			t.Errorf("path %q: %d %s", path, status, answer)
		}
	}
}

// filesOutside lists what is in the fleet's folder and not in the agent's config
// folder, nor in what it and the coordinator write anyway.
func (f *fleet) filesOutside(agent string) (paths []string) {
	f.t.Helper()
	own := []string{filepath.Join(f.agentDir(agent), "configs"), filepath.Join(f.agentDir(agent), "held-configs"), f.dataFolder()}
	err := filepath.WalkDir(filepath.Dir(f.dir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains(own, path) {
			return fs.SkipDir
		}
		paths = append(paths, path)
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return paths
}

// C093: what was posted is what is read back, and what the agent holds, byte by
// byte; what is over the limit is refused.
func TestC093ContentOverREST(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	const path, most = "/v1/configs/data", 4 << 20
	f.do("PUT", path, `{"kind":"PIPELINE"}`, http.StatusOK, new(any))
	post := func(content string) (status int, answer []byte) {
		t.Helper()
		status, answer, err := f.askWith(http.Header{"Content-Type": {"application/octet-stream"}}, "POST", path+"/versions", content)
		if err != nil {
			t.Fatal(err)
		}
		return status, answer
	}
	for name, content := range map[string]string{
		"no final line end": "a\nb", "CRLF": "a\r\nb\r\n", "NUL": "\x00\x00", "Latin-1": "caf\xe9\n", "placeholder": "{} {{}} {0} %s\n", "mark": "\ufeffx",
		"one line of 4 MiB": strings.Repeat("x", most), "4 MiB that is not text": strings.Repeat("\xff\x00\r\n", most/4), "nothing": "",
	} {
		status, answer := post(content)
		var made struct {
			Version int
			SHA256  string
		}
		if err := json.Unmarshal(answer, &made); err != nil || status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, status, answer)
			continue
		}
		if _, back, err := f.ask("GET", fmt.Sprintf("%s/versions/%d/content", path, made.Version), ""); err != nil || string(back) != content {
			t.Errorf("%s: %v, %d bytes come back of %d", name, err, len(back), len(content))
		}
		if want := fmt.Sprintf("%x", sha256.Sum256([]byte(content))); made.SHA256 != want {
			t.Errorf("%s: sha256 %s, want %s", name, made.SHA256, want)
		}
		f.do("PUT", path, fmt.Sprintf(`{"bindings":[{"agent":"a1","version":%d}]}`, made.Version), http.StatusOK, new(any))
		held := filepath.Join(f.agentDir("a1"), "configs", "data")
		eventually(t, 20*time.Second, name+" is held", func() bool {
			b, err := os.ReadFile(held)
			return err == nil && string(b) == content
		})
	}
	if status, answer := post(strings.Repeat("x", most+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a byte too many: %d %s", status, answer)
	}
	body, err := json.Marshal(map[string][]byte{"content": make([]byte, most+1)})
	if err != nil {
		t.Fatal(err)
	}
	if status, answer, err := f.ask("POST", path+"/versions", string(body)); err != nil || status < 400 || status > 499 {
		t.Errorf("a byte too many as base64: %v %d %s", err, status, answer)
	}
}
