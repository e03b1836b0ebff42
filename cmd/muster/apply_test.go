package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// shelf is a server of the one config nginx and the group web, as far as apply
// asks it.
type shelf struct {
	head     string   // JSON; "": there is none
	contents []string // of its versions, from 1
	file     string   // of each, JSON
	groups   string
	preview  string
	rollout  string // the state in which one ends
	refused  string // the path of what is refused, or ""
	changes  []string
	tried    []string // by dry runs
}

func (s *shelf) try(w http.ResponseWriter, r *http.Request, body string) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	s.tried = append(s.tried, r.Method+" "+path+" "+body)
	if path == s.refused {
		refuse(w, 409, "PATH_TAKEN", "the path is taken")
		return
	}
	w.Write([]byte(`{"etag":"tried"}`))
}

// after is text behind a separator, unless it is empty.
func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

func (s *shelf) service(t *testing.T) *fakeService {
	note := func(answer func(body string) string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if r.URL.Query().Has("dry_run") {
				s.try(w, r, string(b))
				return
			}
			s.changes = append(s.changes, strings.TrimPrefix(r.Method+" "+r.URL.Path, "/v1")+" "+r.Header.Get("If-Match")+r.Header.Get("If-None-Match")+" "+string(b))
			w.Write([]byte(answer(string(b))))
		}
	}
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/groups":          say(`{"groups":[` + s.groups + `]}`),
		"GET /v1/configs":         say(`{"configs":[{"name":"other"}` + after(",", s.head) + `]}`),
		"POST /v1/groups/preview": say(`{"total":2,"fleet":4,"joining":["a1","a2"],"leaving":1,"leaving_ids":["a3"],"configs":["base"]}`),
		"POST /v1/configs/preview": func(w http.ResponseWriter, _ *http.Request) {
			if strings.Contains(s.head, "rollout_id") {
				refuse(w, 409, "ROLLOUT_IN_PROGRESS", "abort it first")
				return
			}
			w.Write([]byte(s.preview))
		},
		"PUT /v1/groups/web": note(func(string) string { return `{"name":"web"}` }),
		"GET /v1/configs/nginx": func(w http.ResponseWriter, r *http.Request) {
			if s.head == "" {
				refuse(w, 404, "NOT_FOUND", "config is not known")
				return
			}
			w.Write([]byte(s.head))
		},
		"PUT /v1/configs/nginx": note(func(string) string {
			if s.head == "" {
				s.head = `{"name":"nginx","kind":"PIPELINE","etag":"e1"}`
			}
			return s.head
		}),
		"POST /v1/configs/nginx/versions": note(func(string) string { return fmt.Sprintf(`{"version":%d}`, len(s.contents)+1) }),
		"POST /v1/configs/nginx/rollouts": note(func(string) string { return rolloutJSON(s.rollout, `"total":4,"applied":4`) }),
		"GET /v1/rollouts/R1":             say(rolloutJSON(s.rollout, `"total":4,"applied":4`)),
		"GET /v1/rollouts/R1/targets":     say(`{"targets":[]}`),
	}}
	var versions []string // newest first
	for i, content := range s.contents {
		versions = slices.Insert(versions, 0, fmt.Sprintf(`{"version":%d,"sha256":%q,"file":%s}`, i+1, hashOf([]byte(content)), s.file))
		f.answers[fmt.Sprintf("GET /v1/configs/nginx/versions/%d/content", i+1)] = say(content)
	}
	f.answers["GET /v1/configs/nginx/versions"] = say(`{"versions":[` + strings.Join(versions, ",") + `]}`)
	return f
}

const (
	webGroup     = `{"name":"web","where":"true","etag":"g1"}`
	headAt2      = `{"name":"nginx","kind":"PIPELINE","latest_version":2,"etag":"e2","bindings":[{"group":"web","version":2}]}`
	allChange    = `{"total":4,"fleet":4,"changed":4,"changes":[{"agent_id":"a1","from_version":2,"to_version":3},{"agent_id":"a2","to_version":3}]}`
	contentTwo   = `"content":"dHdvCg=="`
	contentThree = `"content":"dGhyZWUK"`
)

func nginxFolder(t *testing.T, content, more string) string {
	return writeFolder(t, map[string]string{
		"groups.yaml":        "- name: web\n  where: \"true\"\n",
		"configs/nginx.yaml": "bindings: {groups: [web]}\ncontent_file: nginx.conf\nfile: {mode: 644}\n" + more,
		"configs/nginx.conf": content,
	})
}

func TestApply(t *testing.T) {
	known := shelf{head: headAt2, contents: []string{"one\n", "two\n"}, file: `{"path":"nginx","mode":"0644"}`, groups: webGroup, preview: allChange, rollout: "DONE"}
	with := func(change func(s *shelf)) shelf {
		s := known
		change(&s)
		return s
	}
	const withPlan = "rollout: {canary: 1, batch: 50%}\n"
	for _, tc := range []struct {
		name          string
		server        shelf
		content, more string
		args          string
		code          int
		changes       []string
		says          []string
	}{
		{"a fresh server", with(func(s *shelf) { s.head, s.contents, s.groups = "", nil, "" }), "two\n", "", "", 0, []string{
			`PUT /v1/groups/web  {"where":"true"}`,
			`PUT /v1/configs/nginx * {"kind":"PIPELINE"}`,
			`POST /v1/configs/nginx/versions  {` + contentTwo + `,"file":{"mode":"644"}}`,
			`PUT /v1/configs/nginx "e1" {"kind":"PIPELINE","bindings":[{"group":"web","version":1}]}`,
		}, []string{"group web: new, 2 of 4 agents, 2 join, 1 leave\n  leave: a3\n  configs of the group: base; who", "config nginx: new, a new version, bound to group web, +1/-0/~1 of 4 agents\n", "left alone, as the folder does not name them: 0 groups, 1 configs", "done\n"}},
		{"nothing to do", known, "two\n", withPlan, "", 0, nil, []string{"group web: no change", "config nginx: no change, version 2", "nothing to do\n"}},
		{"new content", known, "three\n", withPlan, "", 0, []string{
			`POST /v1/configs/nginx/versions  {` + contentThree + `,"file":{"mode":"644"}}`,
			`POST /v1/configs/nginx/rollouts  {"version":3,"plan":{"canary":"1","batch":"50%"}}`,
		}, []string{"changed, a new version after 2, rollout (canary 1, batch 50%), +1/-0/~1 of 4 agents", "version 3 of nginx DONE", "done\n"}},
		{"new content, dry run", known, "three\n", withPlan, "--dry-run", 0, nil,
			[]string{"  --- nginx version 2\n  +++ nginx in the folder\n", "  @@ -1 +1 @@\n  -two\n  +three\nleft alone", "nothing was changed\n"}},
		{"a new file only", with(func(s *shelf) { s.file = `{"path":"nginx","mode":"0600","check_cmd":["true"]}` }), "two\n", "", "--detach", 0, []string{
			`POST /v1/configs/nginx/versions  {` + contentTwo + `,"file":{"mode":"644"}}`, `POST /v1/configs/nginx/rollouts  {"version":3}`,
		}, []string{"mode: 0600 -> 0644\n", `check_cmd: ["true"] -> none`, "rollout R1 goes on"}},
		{"it was rolled back, and so was the folder", with(func(s *shelf) {
			s.head = `{"name":"nginx","kind":"PIPELINE","latest_version":2,"etag":"e2","bindings":[{"group":"web","version":1}]}`
		}), "one\n", "", "", 0, nil, []string{"no change, version 1"}},
		{"it was rolled back, and the folder was not", with(func(s *shelf) {
			s.head = `{"name":"nginx","kind":"PIPELINE","latest_version":2,"etag":"e2","bindings":[{"group":"web","version":1}]}`
		}), "two\n", "", "", 0, []string{`POST /v1/configs/nginx/rollouts  {"version":2}`}, []string{"version 2 after 1"}},
		{"what an older version was", with(func(s *shelf) {
			s.contents = []string{"one\n", "two\n", "bad\n"}
			s.head = strings.Replace(headAt2, `"latest_version":2`, `"latest_version":3`, 1)
		}),
			"one\n", "", "", 0, []string{`POST /v1/configs/nginx/rollouts  {"version":1}`}, []string{"version 1 after 2"}},
		{"more bindings: those get the old version first, and the new one with the others", known, "", "", "-f " + writeFolder(t, map[string]string{
			"configs/nginx.yaml": "description: d\nbindings: {fleet: true, groups: [web]}\ncontent: |\n  three\nfile: {mode: 644}\n"}), 0, []string{
			`POST /v1/configs/nginx/versions  {` + contentThree + `,"file":{"mode":"644"}}`,
			`PUT /v1/configs/nginx "e2" {"kind":"PIPELINE","description":"d","bindings":[{"fleet":true,"version":2},{"group":"web","version":2}]}`,
			`POST /v1/configs/nginx/rollouts  {"version":3}`,
		}, []string{"1 groups, 1 configs"}},
		{"the rollout fails", with(func(s *shelf) { s.rollout = "ROLLED_BACK" }), "three\n", "", "", 2, []string{
			`POST /v1/configs/nginx/versions  {` + contentThree + `,"file":{"mode":"644"}}`, `POST /v1/configs/nginx/rollouts  {"version":3}`,
		}, []string{"ROLLED_BACK", `config "nginx": the rollout failed`}},
		{"a rollout is under way", with(func(s *shelf) {
			s.head = `{"name":"nginx","kind":"PIPELINE","latest_version":3,"etag":"e2","rollout_id":"R1","bindings":[{"group":"web","version":2}]}`
			s.contents, s.rollout = []string{"one\n", "two\n", "three\n"}, "RUNNING"
		}), "three\n", "", "--detach", 0, nil, []string{"0 of 4 agents, rollout R1 is in progress", "rollout R1 goes on"}},
		{"for most of the fleet", with(func(s *shelf) { s.preview = `{"total":12,"fleet":12,"changed":7}` }), "three\n", "", "", 1, nil, []string{"config nginx: this is for 7 of 12 agents; say --yes"}},
		{"nothing said of bindings leaves them alone", known, "", "", "-f " + writeFolder(t, map[string]string{
			"configs/nginx.yaml": "content: |\n  two\nfile: {mode: 644}\n"}), 0, nil, []string{"config nginx: no change, version 2"}},
		{"nothing said of bindings, new content", known, "", "", "-f " + writeFolder(t, map[string]string{
			"configs/nginx.yaml": "bindings:\ncontent: |\n  three\nfile: {mode: 644}\n"}), 0, []string{
			`POST /v1/configs/nginx/versions  {` + contentThree + `,"file":{"mode":"644"}}`, `POST /v1/configs/nginx/rollouts  {"version":3}`,
		}, []string{"version 3 of nginx DONE"}},
		{"no bindings take them away, and that is said", with(func(s *shelf) {
			s.preview = `{"total":0,"fleet":4,"changed":2,"changes":[{"agent_id":"a1","from_version":2},{"agent_id":"a2","from_version":2}]}`
		}), "", "", "-f " + writeFolder(t, map[string]string{
			"configs/nginx.yaml": "bindings: {}\ncontent: |\n  two\nfile: {mode: 644}\n"}), 0, []string{`PUT /v1/configs/nginx "e2" {"kind":"PIPELINE"}`},
			[]string{"version 2, bound to nobody, +0/-2/~0 of 4 agents\n  it goes from a1, a2\n"}},
		{"a kind stays", known, "two\n", "kind: instance\n", "", 1, nil, []string{"it is PIPELINE, and stays so"}},
		{"a group that nobody has", known, "two\n", "", "-f " + writeFolder(t, map[string]string{"configs/nginx.yaml": "content: x\nbindings: {groups: [db]}\n"}), 1, nil, []string{`bound to group "db", which neither`}},
	} {
		s := tc.server
		f := s.service(t)
		args := []string{"apply"}
		if !strings.Contains(tc.args, "-f ") {
			args = append(args, "-f", nginxFolder(t, tc.content, tc.more))
		}
		stdout, stderr, code := muster(t, f, append(args, strings.Fields(tc.args)...)...)
		if len(s.changes) > 0 && len(s.tried) == 0 {
			t.Errorf("%s: nothing was tried before it was done", tc.name)
		}
		if code != tc.code || !slices.Equal(s.changes, tc.changes) {
			t.Errorf("%s: exit %d, changes\n%s\nwant\n%s\n%s%s", tc.name, code, strings.Join(s.changes, "\n"), strings.Join(tc.changes, "\n"), stdout, stderr)
		}
		for _, word := range tc.says {
			if !strings.Contains(stdout+stderr, word) {
				t.Errorf("%s: no %q in\n%s%s", tc.name, word, stdout, stderr)
			}
		}
	}
}

// What the coordinator would refuse is found before anything is done, and by a
// dry run, too.
func TestApplyTriesAllBeforeItDoesAny(t *testing.T) {
	fresh := shelf{preview: allChange, rollout: "DONE"}
	known := shelf{head: headAt2, contents: []string{"one\n", "two\n"}, file: `{"path":"nginx","mode":"0644"}`, groups: webGroup, preview: allChange, rollout: "DONE"}
	described := "description: new\n"
	for path, server := range map[string]shelf{"/groups/web": fresh, "/configs/nginx": fresh, "/configs/nginx/versions": fresh, "/configs/nginx/rollouts": known} {
		for _, dryRun := range []string{"--dry-run", "--yes"} {
			s := server
			s.refused = path
			f := s.service(t)
			stdout, stderr, code := muster(t, f, "apply", dryRun, "-f", nginxFolder(t, "three\n", described))
			if code != 1 || len(s.changes) > 0 || !strings.Contains(stderr, "nothing was changed") || !strings.Contains(stderr, "the path is taken") {
				t.Errorf("%s %s: exit %d, changes %q, tried %q\n%s%s", path, dryRun, code, s.changes, s.tried, stdout, stderr)
			}
		}
	}
	s := known
	muster(t, s.service(t), "apply", "-f", nginxFolder(t, "three\n", described))
	if want := []string{
		`POST /configs/nginx/versions {` + contentThree + `,"file":{"mode":"644"}}`,
		`PUT /configs/nginx {"kind":"PIPELINE","description":"new","bindings":[{"group":"web","version":2}]}`,
		`POST /configs/nginx/rollouts {"version":2}`,
	}; !slices.Equal(s.tried, want) {
		t.Errorf("tried\n%s", strings.Join(s.tried, "\n"))
	}
}

// Who will be in a group is asked for by their ids, as long as they are few.
func TestPlanForeseesItsGroups(t *testing.T) {
	many := make([]string, maxBindings)
	for i := range many {
		many[i] = fmt.Sprintf("a%04d", i)
	}
	groups := map[string]*groupPlan{
		"new":  {Change: added, Joining: 2, members: []string{"b", "a"}},
		"grow": {Change: changed, Joining: 1, members: []string{"a", "c"}},
		"same": {Change: unchanged},
		"huge": {Change: added, Joining: 1000, members: many},
		"more": {Change: changed, Joining: 7, members: many},
	}
	as, missed := foreseen(&scopes{Groups: []string{"new", "grow", "same", "stored"}, Agents: []string{"a", "z"}}, groups)
	if got := bindingList(as.at(0)); missed != 0 || got != "group same, group stored, agent a, agent b, agent c, agent z" {
		t.Errorf("%s, missed %d", got, missed)
	}
	as, missed = foreseen(&scopes{Fleet: true, Groups: []string{"new", "huge", "more"}}, groups)
	if got := bindingList(as.at(0)); missed != 1007 || got != "fleet, group more, agent a, agent b" {
		t.Errorf("%s, missed %d", got, missed)
	}
}

func TestApplyAsJSON(t *testing.T) {
	s := shelf{head: headAt2, contents: []string{"one\n", "two\n"}, file: `{"path":"nginx","mode":"0644"}`, groups: webGroup, preview: allChange, rollout: "ROLLED_BACK"}
	stdout, _, code := muster(t, s.service(t), "apply", "-o", "json", "-f", nginxFolder(t, "three\n", ""))
	var got struct {
		Groups  []groupPlan
		Configs []struct {
			Change  change
			Version int
			From    int
			Rollout configRollout
		}
		OtherConfigs []string `json:"other_configs"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if c := got.Configs[0]; code != exitFailed || c.Change != changed || c.Version != 3 || c.From != 2 || c.Rollout.State != "ROLLED_BACK" || got.Groups[0].Change != unchanged || got.Groups[0].Fleet != 4 ||
		!slices.Equal(got.OtherConfigs, []string{"other"}) {
		t.Errorf("exit %d: %+v", code, got)
	}
}
