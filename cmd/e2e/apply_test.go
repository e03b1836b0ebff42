package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// site is a folder for `muster apply` with one config, motd.
type site struct {
	t   *testing.T
	dir string
}

func newSite(t *testing.T, where, motd string) *site {
	t.Helper()
	s := &site{t, t.TempDir()}
	s.write("groups.yaml", fmt.Sprintf("- name: web\n  where: %q\n", where))
	s.write("configs/motd.yaml", "bindings: {groups: [web]}\ncontent_file: motd.txt\nfile: {path: motd.conf, mode: 0640}\nrollout: {canary: 1, batch: 1}\n")
	s.write("configs/motd.txt", motd)
	return s
}

func (s *site) write(path, text string) {
	s.t.Helper()
	path = filepath.Join(s.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// held is the content of a config's file on an agent, "" while there is none.
func (f *fleet) held(agent, path string) string {
	b, err := os.ReadFile(filepath.Join(f.agentDir(agent), "configs", path))
	if err != nil && !os.IsNotExist(err) {
		f.t.Error(err)
	}
	return string(b)
}

func (f *fleet) waitHeld(path, content string, agents ...string) {
	f.t.Helper()
	for _, id := range agents {
		eventually(f.t, 20*time.Second, fmt.Sprintf("%s holds %q at %s", id, content, path), func() bool { return f.held(id, path) == content })
	}
}

type configVersions struct {
	Versions []struct {
		Version int
		SHA256  string
	}
}

func (f *fleet) versions(config string) int {
	f.t.Helper()
	var all configVersions
	f.do("GET", "/v1/configs/"+config+"/versions", "", http.StatusOK, &all)
	return len(all.Versions)
}

// What a folder says becomes so, and nothing else: the second run finds nothing
// to do, and the dry run does nothing.
func TestApplyMakesItSo(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	web := []string{"web-1", "web-2"}
	for _, id := range web {
		f.startAgent(id, "--tag", "role=web")
	}
	f.startAgent("db-1", "--tag", "role=db")
	f.waitOnline("web-1", "web-2", "db-1")
	s := newSite(t, `tags["role"] == "web"`, "hello\r\n\x00")
	apply := func(code int, words []string, flags ...string) {
		t.Helper()
		f.wantMuster(code, append([]string{"apply", "-f", s.dir}, flags...), words...)
	}

	apply(0, []string{"group web: new, 2 of 3 agents", "config motd: new", "+2/-0/~0 of 3 agents", "nothing was changed"}, "--dry-run")
	f.wantMuster(0, []string{"groups", "list"}, "GROUP")
	if status, body, _ := f.ask("GET", "/v1/configs/motd", ""); status != 404 {
		t.Errorf("after a dry run: %d %s", status, body)
	}
	apply(0, []string{"done"})
	f.waitHeld("motd.conf", "hello\r\n\x00", web...)
	if got := f.held("db-1", "motd.conf"); got != "" {
		t.Errorf("db-1 holds %q", got)
	}
	apply(0, []string{"group web: no change", "config motd: no change, version 1", "nothing to do"})
	if n := f.versions("motd"); n != 1 {
		t.Errorf("%d versions", n)
	}
	eventually(t, 10*time.Second, "the status of both is told", func() bool {
		out, _, _ := f.muster("configs", "status", "motd")
		return strings.Count(out, "APPLIED") == 2
	})
	f.wantMuster(0, []string{"agents", "configs", "web-1"}, "motd", "APPLIED")
	f.wantMuster(0, []string{"groups", "members", "web"}, "web-1", "web-2")
	f.wantMuster(0, []string{"run", "-g", "web", "--", "true"}, "succeeded 2")
	f.wantMuster(1, []string{"groups", "delete", "web"}, "motd")

	// What it does not name stays.
	s.write("groups.yaml", "- name: all\n  where: \"true\"\n")
	if err := os.Remove(filepath.Join(s.dir, "configs/motd.yaml")); err != nil {
		t.Fatal(err)
	}
	apply(0, []string{"left alone, as the folder does not name them: 1 groups, 1 configs", "group all: new", "done"})
	f.waitHeld("motd.conf", "hello\r\n\x00", web...)

	f.wantMuster(0, []string{"configs", "delete", "motd"}, "+0/-2/~0 of 3 agents")
	f.waitHeld("motd.conf", "", web...)
	f.wantMuster(0, []string{"agents", "delete", "db-1"}, "deleted")
}

// A change for most of a fleet that is not small wants --yes, and an expression
// that is true of everybody is pointed out.
func TestApplyAsksForYes(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for i := range 12 {
		f.registered(fmt.Sprintf("idle-%d", i))
	}
	s := newSite(t, `id != ""`, "hello\n")
	f.wantMuster(0, []string{"apply", "-f", s.dir, "--dry-run"}, "all 12 agents are members; is the expression what you mean?")
	f.wantMuster(1, []string{"apply", "-f", s.dir}, "group web: this is for 12 of 12 agents; say --yes")
	f.wantMuster(1, []string{"groups", "put", "web", "--where", `id != ""`}, "12 of 12 agents; say --yes")
	f.wantMuster(0, []string{"groups", "list"}, "GROUP")
	f.wantMuster(0, []string{"apply", "-f", s.dir, "--yes"}, "done")
	f.wantMuster(1, []string{"configs", "delete", "motd"}, "12 of 12 agents; say --yes")
	f.wantMuster(0, []string{"groups", "put", "few", "--agent", "idle-1,idle-2"}, "2 of 12 agents, 2 joined, 0 left")
	f.wantMuster(1, []string{"configs", "bind", "motd", "--group", "web", "--remove"}, "12 of 12 agents; say --yes")
	f.wantMuster(0, []string{"configs", "preview", "motd", "-g", "few"}, "+0/-0/~0 of 12 agents; nothing was changed")
}

// Two operators: the second does not undo what the first did.
func TestConditionsKeepChangesApart(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	put := func(path, body, header, value string) (int, string) {
		t.Helper()
		h := http.Header{}
		if header != "" {
			h.Set(header, value)
		}
		status, answer, err := f.askWith(h, "PUT", path, body)
		if err != nil {
			t.Fatal(err)
		}
		return status, string(answer)
	}
	for path, bodies := range map[string][2]string{
		"/v1/groups/web":    {`{"where":"true"}`, `{"where":"false"}`},
		"/v1/configs/nginx": {`{"kind":"PIPELINE"}`, `{"kind":"PIPELINE","description":"d"}`},
	} {
		if status, answer := put(path, bodies[0], "If-Match", "*"); status != 412 {
			t.Errorf("%s, which is not there: %d %s", path, status, answer)
		}
		if status, answer := put(path, bodies[0], "If-None-Match", "*"); status != 201 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		if status, answer := put(path, bodies[0], "If-None-Match", "*"); status != 412 || !strings.Contains(answer, "ETAG_MISMATCH") {
			t.Errorf("%s, which is there: %d %s", path, status, answer)
		}
		var seen struct{ ETag string }
		f.do("GET", path, "", http.StatusOK, &seen)
		if status, answer := put(path+"?dry_run=1", bodies[1], "If-Match", `"`+seen.ETag+`"`); status != 200 {
			t.Errorf("%s, dry run: %d %s", path, status, answer)
		}
		for i, want := range []int{200, 412} {
			if status, answer := put(path, bodies[1], "If-Match", `"`+seen.ETag+`"`); status != want {
				t.Errorf("%s by operator %d: %d %s", path, i+1, status, answer)
			}
		}
		status, answer, err := f.askWith(http.Header{"If-Match": {`"` + seen.ETag + `"`}}, "DELETE", path, "")
		if err != nil || status != 412 {
			t.Errorf("DELETE %s: %v %d %s", path, err, status, answer)
		}
	}
	for i, step := range []struct {
		query  string
		status int
	}{{"?base_version=1", 409}, {"", 201}, {"?base_version=1", 201}, {"?base_version=1", 409}} {
		body := fmt.Sprintf(`{"content":"YQ==","note":"%d"}`, i)
		if status, answer, err := f.ask("POST", "/v1/configs/nginx/versions"+step.query, body); err != nil || status != step.status {
			t.Errorf("version %d: %v %d %s, want %d", i, err, status, answer, step.status)
		}
	}
}

// INSTANCE configs from a folder are one document on the agent, in which the
// smaller scope wins.
func TestApplyMergesInstanceConfigs(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("web-1", "--tag", "role=web")
	f.startAgent("db-1", "--tag", "role=db")
	f.waitOnline("web-1", "db-1")
	s := &site{t, t.TempDir()}
	s.write("groups.yaml", "- name: web\n  where: tags[\"role\"] == \"web\"\n")
	s.write("configs/base.yaml", "kind: instance\nbindings: {fleet: true}\ncontent: '{\"level\": \"info\", \"limit\": {\"cpu\": 1, \"mem\": 9007199254740993}}'\n")
	s.write("configs/loud.yaml", "kind: instance\nbindings: {groups: [web]}\ncontent: '{\"level\": \"debug\", \"limit\": {\"cpu\": 2}}'\n")
	f.wantMuster(0, []string{"apply", "-f", s.dir}, "config base: new", "+2/-0/~0 of 2 agents", "config loud: new", "+1/-0/~0 of 2 agents", "done")
	for id, want := range map[string][2]string{
		"web-1": {`"debug"`, `2`}, "db-1": {`"info"`, `1`},
	} {
		eventually(t, 20*time.Second, id+" holds its document", func() bool {
			text := f.held(id, "instance")
			return strings.Contains(text, want[0]) && strings.Contains(text, want[1]) && strings.Contains(text, "9007199254740993")
		})
	}
	f.wantMuster(0, []string{"agents", "configs", "web-1"}, "instance from base, bound to fleet version 1", "instance from loud, bound to group web version 1", `"level": "debug"`)
	f.wantMuster(0, []string{"apply", "-f", s.dir}, "nothing to do")
	s.write("configs/base.yaml", "kind: instance\nbindings: {fleet: true}\ncontent: '[1]'\n")
	f.wantMuster(1, []string{"apply", "-f", s.dir}, "JSON object")
}
