package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const nginx = `{"name":"nginx","kind":"PIPELINE","latest_version":3,"etag":"e3","bindings":[{"fleet":true,"version":2},{"group":"web","version":3}],` +
	`"counts":{"total":9,"applied":7,"failed":2}}`

func TestConfigsAreShown(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("and more ", 30)) + " (start it with --all)"
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/configs":                          say(`{"configs":[` + nginx + `]}`),
		"GET /v1/configs/nginx":                    say(nginx),
		"GET /v1/configs/nginx/versions":           say(`{"versions":[{"version":3,"size":12,"sha256":"00112233445566778899","file":{"path":"n.conf"},"note":"why"}]}`),
		"GET /v1/configs/nginx/versions/3/content": say("a\x1b\r\n"),
		"GET /v1/configs/nginx/versions/1/content": say("one"),
		"GET /v1/configs/nginx/diff":               say(`{"text":"--- a\n+++ b\n-x\n+\u001b[31my\n","file_changes":["mode: 0600 -> 0644"]}`),
		"GET /v1/configs/nginx/status":             say(`{"statuses":[{"agent_id":"a1","version":3,"status":"FAILED","running_version":2,"wanted_version":3,"reason":"check\nfailed: ` + long + `"},{"agent_id":"a2","wanted_version":-1}]}`),
		"GET /v1/agents":                           say(`{"agents":[{"id":"a1","status":"ONLINE"},{"id":"a2","status":"SUSPECT"}]}`),
		"GET /v1/agents/a1/configs":                say(`{"configs":[{"kind":"PIPELINE","name":"nginx","version":3,"status":"APPLIED","running_version":3,"wanted_version":3}],"instance":{"n":9007199254740993},"sources":[{"config":"base","binding":{"fleet":true,"version":4}}]}`),
	}}
	for args, want := range map[string]string{
		"configs list":                       "nginx   PIPELINE  3       fleet version 2, group web version 3  applied 7, failed 2\n",
		"configs show nginx":                 "bound to    fleet version 2\nbound to    group web version 3\nagents      applied 7, failed 2\n",
		"configs versions nginx":             "3        12    001122334455  n.conf  why   -        group web\n",
		"configs cat nginx":                  "a\x1b\r\n", // as it is
		"configs cat nginx --version 1":      "one",
		"configs diff nginx":                 "mode: 0600 -> 0644\n--- a\n+++ b\n-x\n+·[31my\n",
		"configs status nginx":               "a1               FAILED  3        2        3       check failed: " + long + "\na2     SUSPECT   -       -        -        none\n",
		"agents configs a1":                  "PIPELINE  nginx   APPLIED  3        3        3\ninstance from base, bound to fleet version 4\n{\n  \"n\": 9007199254740993\n}\n",
		"configs status nginx --status all ": "a1",
	} {
		if stdout, stderr, code := muster(t, f, strings.Fields(args)...); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, no %q in\n%q%s", args, code, want, stdout, stderr)
		}
	}
	f.asked = nil
	muster(t, f, "configs", "diff", "nginx", "--from", "1")
	muster(t, f, "configs", "status", "nginx", "--status", "failed,applied")
	if want := "GET /v1/configs/nginx GET /v1/configs/nginx/diff?from=1&to=3 GET /v1/configs/nginx/status?page_size=1000&status=FAILED%2CAPPLIED GET /v1/agents?page_size=1000"; strings.Join(f.asked, " ") != want {
		t.Errorf("asked %q", f.asked)
	}
}

func TestConfigVersionIsPut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nginx.conf")
	if err := os.WriteFile(path, []byte("a\r\n\x00\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, maxContent+1), 0o600); err != nil {
		t.Fatal(err)
	}
	const content = `{"content":"YQ0KAP8="`
	for _, tc := range []struct {
		args  string
		known bool
		code  int
		sent  []string
		says  string
	}{
		{"nginx " + path, true, 0, []string{`POST  ` + content + `,"file":{"path":"n.conf","mode":"0644","check_cmd":["true"]}}`}, "nginx: version 4\n"},
		{"nginx " + path + " --check-cmd= --mode 0600 --note why --reload-cmd [\"a\",\"{}\"]", true, 0,
			[]string{`POST  ` + content + `,"file":{"path":"n.conf","mode":"0600","reload_cmd":["a","{}"]},"note":"why"}`}, "nginx: version 4\n"},
		{"nginx " + path + " --kind instance --description d", false, 0, []string{`PUT * {"kind":"INSTANCE","description":"d"}`, `POST  ` + content + `,"file":{}}`}, "nginx: version 4\n"},
		{"nginx " + path + " --kind instance", true, 1, nil, `config "nginx" is PIPELINE, and stays so`},
		{"nginx " + path + " --kind Pipeline", true, 0, []string{`POST  ` + content + `,"file":{"path":"n.conf","mode":"0644","check_cmd":["true"]}}`}, "nginx: version 4\n"},
		{"nginx " + path + " --mode 999", false, 1, nil, "file.mode"},
		{"nginx " + path + " --reload-cmd 'true'", true, 1, nil, `["sh","-c","exit 0"]`},
		{"nginx " + path + " --check-cmd \"true\"", true, 1, nil, "--check-cmd \"true\": quotes are not read"},
		{"nginx " + path + ".missing", true, 1, nil, "no such file"},
		{"nginx " + large, true, 1, nil, "over 4194304 bytes"},
		{"nginx " + path + " --reload-cmd [1]", true, 1, nil, "JSON array"},
		{"nginx", true, 1, nil, "want CONFIG FILE"},
	} {
		var sent []string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"PUT /v1/configs/nginx": noting(&sent, `{"name":"nginx"}`),
			"POST /v1/configs/nginx/versions": func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !r.URL.Query().Has("dry_run"):
					noting(&sent, `{"version":4}`)(w, r)
				case strings.Contains(tc.args, "999"):
					refuse(w, 422, "INVALID", "file.mode is not a mode")
				default:
					w.Write([]byte(`{"version":1}`))
				}
			},
		}}
		if tc.known {
			f.answers["GET /v1/configs/nginx"] = say(nginx)
			f.answers["GET /v1/configs/nginx/versions/3"] = say(`{"version":3,"file":{"path":"n.conf","mode":"0644","check_cmd":["true"]}}`)
		}
		stdout, stderr, code := muster(t, f, append([]string{"configs", "put"}, strings.Fields(tc.args)...)...)
		if code != tc.code || strings.Join(sent, "\n") != strings.Join(tc.sent, "\n") || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%s: exit %d, sent %q\n%s%s", tc.args, code, sent, stdout, stderr)
		}
	}
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/configs/nginx": say(nginx), "GET /v1/configs/nginx/versions/3": say(`{"version":3}`), "POST /v1/configs/nginx/versions": say(`{"version":3}`),
	}}
	if stdout, _, code := muster(t, f, "configs", "put", "nginx", path, "--base-version", "3"); code != 0 || stdout != "nginx: version 3 is the same; nothing was changed\n" {
		t.Errorf("exit %d: %s", code, stdout)
	}
	if asked := f.asked[len(f.asked)-1]; asked != "POST /v1/configs/nginx/versions?base_version=3&unless_same=1" {
		t.Errorf("asked %s", asked)
	}
}

func TestConfigIsBound(t *testing.T) {
	const small = `{"total":2,"fleet":3,"changed":2,"changes":[{"agent_id":"a1","to_version":3},{"agent_id":"a2","from_version":2,"to_version":3}]}`
	for _, tc := range []struct {
		args, preview string
		code          int
		sent, says    string
	}{
		{"nginx --fleet", small, 0, `PUT "e3" {"bindings":[{"group":"web","version":3},{"fleet":true,"version":3}]}`, "nginx: +1/-0/~1 of 3 agents\n"},
		{"nginx -g web -g db --agent a1 --version 1", small, 0,
			`PUT "e3" {"bindings":[{"fleet":true,"version":2},{"group":"web","version":1},{"group":"db","version":1},{"agent":"a1","version":1}]}`, "note: not known, so far: a1\n"},
		{"nginx --group web --remove", small, 0, `PUT "e3" {"bindings":[{"fleet":true,"version":2}]}`, ""},
		{"nginx --fleet --dry-run", small, 0, "", "AGENT  FROM  TO\na1     -     3\na2     2     3\n+1/-0/~1 of 3 agents; nothing was changed\n"},
		{"nginx", small, 1, "", "--fleet, --group or --agent"},
		{"nginx --fleet", `{"total":12,"fleet":12,"changed":7}`, 1, "", "7 of 12 agents; say --yes"},
		{"nginx --fleet --yes", `{"total":12,"fleet":12,"changed":7}`, 0, `PUT "e3" {"bindings":[{"group":"web","version":3},{"fleet":true,"version":3}]}`, ""},
	} {
		var sent []string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/agents":        say(`{"agents":[]}`),
			"GET /v1/configs/nginx": say(nginx), "POST /v1/configs/preview": say(tc.preview), "PUT /v1/configs/nginx": noting(&sent, `{"name":"nginx"}`),
		}}
		stdout, stderr, code := muster(t, f, append([]string{"configs", "bind"}, strings.Fields(tc.args)...)...)
		if code != tc.code || strings.Join(sent, "\n") != tc.sent || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%s: exit %d, sent %q\n%s%s", tc.args, code, sent, stdout, stderr)
		}
	}
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/configs/new": say(`{"name":"new"}`), "GET /v1/configs/nginx": say(nginx), "POST /v1/configs/preview": say(small),
	}}
	if _, stderr, code := muster(t, f, "configs", "bind", "new", "--fleet"); code != 1 || !strings.Contains(stderr, "no version yet") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if stdout, _, code := muster(t, f, "configs", "preview", "nginx", "--fleet"); code != 0 || !strings.Contains(stdout, "nothing was changed") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}
