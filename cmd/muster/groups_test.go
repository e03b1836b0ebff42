package main

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// noting notes what was sent, and gives an answer; "" is 204.
func noting(bodies *[]string, answer string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		*bodies = append(*bodies, r.Method+" "+r.Header.Get("If-Match")+r.Header.Get("If-None-Match")+" "+string(b))
		if answer == "" {
			w.WriteHeader(http.StatusNoContent)
		}
		w.Write([]byte(answer))
	}
}

func TestGroupsAreShown(t *testing.T) {
	const web = `{"name":"web","where":"os == \"linux\"","agents":["a9"],"size":3,"etag":"e1"}`
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/groups":     say(`{"groups":[` + web + `]}`),
		"GET /v1/groups/web": say(web),
		"GET /v1/groups/web/agents": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("page_token") == "" {
				w.Write([]byte(`{"agent_ids":["a1"],"next_page_token":"n"}`))
			} else {
				w.Write([]byte(`{"agent_ids":["a2"]}`))
			}
		},
	}}
	for args, want := range map[string]string{
		"groups list":                 `web    3       os == "linux"  a9     -`,
		"groups show web":             "named       a9\nagents      3\n",
		"groups members web":          "AGENT\na1\na2\n",
		"groups list --output json":   `"size": 3`,
		"groups show web -o json":     `"etag": "e1"`,
		"groups members web -o json ": `"agent_ids": [`,
	} {
		if stdout, stderr, code := muster(t, f, strings.Fields(args)...); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, no %q in\n%s%s", args, code, want, stdout, stderr)
		}
	}
}

func TestGroupIsPut(t *testing.T) {
	for _, tc := range []struct {
		args, preview string
		code          int
		body, says    string
	}{
		{"web --where os==\"linux\" -l env=prod --agent a1,a2 --agent a3 --description d", `{"total":2,"fleet":9,"joining":["a1"],"leaving":1}`, 0,
			`PUT  {"description":"d","where":"(os==\"linux\") \u0026\u0026 tags[\"env\"] == \"prod\"","agents":["a1","a2","a3"]}`, "web: 2 of 9 agents, 1 joined, 1 left"},
		{"web --where os==\"linux\" --if-match e1", `{"total":2,"fleet":9}`, 0, `PUT "e1" {"where":"os==\"linux\""}`, ""},
		{"web --where os==\"linux\" --if-match \"e1\"", `{"total":2,"fleet":9}`, 0, `PUT "e1" {"where":"os==\"linux\""}`, ""},
		{"web --where id!=\"\"", `{"total":9,"fleet":9}`, 0, `PUT  {"where":"id!=\"\""}`, "all 9 agents are members"},
		{"web --where true", `{"total":12,"fleet":12,"joining":["a","b","c","d","e","f","g"]}`, 1, "", "7 of 12 agents; say --yes"},
		{"web --where true --yes", `{"total":12,"fleet":12,"joining":["a","b","c","d","e","f","g"]}`, 0, `PUT  {"where":"true"}`, ""},
		{"web --where x --dry-run", `{"total":2,"fleet":9,"agent_ids":["a1","a2"],"joining":["a2"],"leaving":4}`, 0, "", "2 of 9 agents, 1 join, 4 leave; nothing was changed"},
		{"web --where x --yes", `{"total":0,"fleet":12,"leaving":2,"leaving_ids":["a3","a4"],"configs":["app"]}`, 0, `PUT  {"where":"x"}`,
			"0 joined, 2 left\nleft: a3, a4\nconfigs of the group: app; who joins gets them, who leaves loses them and their files, unless they are bound otherwise\nnote: no agent is a member\n"},
		{"web --where x --dry-run", `{"total":0,"fleet":12,"leaving":2,"leaving_ids":["a3","a4"],"configs":["app"]}`, 0, "", "a3     leaves\na4     leaves\n0 of 12 agents, 0 join, 2 leave; nothing was changed\nconfigs of the group: app;"},
		{"web --where x", `{"total":0,"fleet":12,"leaving":7}`, 1, "", "7 of 12 agents; say --yes"},
		{"web --agent a1,zz", `{"total":1,"fleet":9}`, 0, `PUT  {"agents":["a1","zz"]}`, "note: not known, so far: zz\n"},
		{"web --tag env", `{}`, 1, "", "NAME=VALUE"},
	} {
		var bodies []string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/agents":          say(`{"agents":[{"id":"a1"}]}`),
			"POST /v1/groups/preview": say(tc.preview), "PUT /v1/groups/web": noting(&bodies, `{"name":"web"}`),
		}}
		stdout, stderr, code := muster(t, f, append([]string{"groups", "put"}, strings.Fields(tc.args)...)...)
		if code != tc.code || strings.Join(bodies, "\n") != tc.body || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%s: exit %d, sent %q\n%s%s", tc.args, code, bodies, stdout, stderr)
		}
	}
}

func TestGroupPreviewWalksItsPages(t *testing.T) {
	var bodies []string
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/groups/preview": inTurn(noting(&bodies, `{"total":3,"fleet":3,"agent_ids":["a1","a2"],"joining":["a2"],"leaving":0,"next_page_token":"n"}`),
			noting(&bodies, `{"total":3,"fleet":3,"agent_ids":["a3"],"joining":["a3"],"leaving":0}`)),
	}}
	stdout, stderr, code := muster(t, f, "groups", "preview", "web", "--where", "id != ''")
	for _, want := range []string{"a1\n", "a2     joins\n", "a3     joins\n", "3 of 3 agents, 2 join, 0 leave", "note: all 3 agents"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, no %q in\n%s%s", code, want, stdout, stderr)
		}
	}
	if want := `POST  {"name":"web","where":"id != ''"}`; !slices.Equal(bodies, []string{want, want}) {
		t.Errorf("sent %q", bodies)
	}
}

func TestDeletesSayWhatIsGone(t *testing.T) {
	var bodies []string
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/groups/web/agents": say(`{"agent_ids":["a1","a2"]}`),
		"DELETE /v1/groups/web":     noting(&bodies, ""),
		"DELETE /v1/agents/a1":      noting(&bodies, ""),
		"DELETE /v1/configs/nginx":  noting(&bodies, ""),
		"GET /v1/configs/nginx":     say(`{"name":"nginx","etag":"e3","bindings":[{"fleet":true,"version":2}]}`),
		"POST /v1/configs/preview":  say(`{"total":0,"fleet":3,"changed":2,"changes":[{"agent_id":"a1","from_version":2},{"agent_id":"a2","from_version":2}]}`),
	}}
	for args, want := range map[string]string{
		"groups delete web": "web: deleted; it had 2 agents\nleft: a1, a2\n", "agents delete a1": "a1: deleted\n", "configs delete nginx": "nginx: deleted; +0/-2/~0 of 3 agents\n",
		"groups delete web -o json": "", "configs delete nginx --dry-run": "AGENT  FROM  TO\na1     2     -\na2     2     -\n+0/-2/~0 of 3 agents; nothing was changed\n",
	} {
		if stdout, stderr, code := muster(t, f, strings.Fields(args)...); code != 0 || stdout != want {
			t.Errorf("%s: exit %d: %q %s", args, code, stdout, stderr)
		}
	}
	slices.Sort(bodies)
	if want := []string{"DELETE  ", "DELETE  ", "DELETE  ", `DELETE "e3" `}; !slices.Equal(bodies, want) {
		t.Errorf("sent %q", bodies)
	}
	f.answers["DELETE /v1/groups/web"] = func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 409, "GROUP_IN_USE", "configs are bound to it")
	}
	if _, stderr, code := muster(t, f, "groups", "delete", "web"); code != 1 || !strings.Contains(stderr, "bound to it") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
