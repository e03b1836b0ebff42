package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestProblemIsTold(t *testing.T) {
	for _, tc := range []struct{ body, want string }{
		{`{"status":422,"code":"INVALID_FIELD","detail":"target.agents[0]: agent \"x\" is not known","errors":[{"field":"target.agents[0]","message":"agent \"x\" is not known"}]}`,
			`the server says: target.agents[0]: agent "x" is not known (422 INVALID_FIELD)`},
		{`{"code":"INVALID","detail":"two things are wrong","errors":[{"field":"timeout","message":"too long"},{"field":"type","message":"is needed"}]}`,
			`the server says: two things are wrong; timeout: too long; type: is needed (422 INVALID)`},
		{`<html>a proxy's own page</html>`, `the server says: <html>a proxy's own page</html> (422 Unprocessable Entity)`},
		{``, `the server says: Unprocessable Entity (422 Unprocessable Entity)`},
	} {
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/x": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(422); w.Write([]byte(tc.body)) },
		}}
		err := f.client().json(t.Context(), "GET", "/v1/x", nil, nil, nil)
		if p := (*problem)(nil); !errors.As(err, &p) || p.Status != 422 || err.Error() != tc.want {
			t.Errorf("%s\n got %v\nwant %s", tc.body, err, tc.want)
		}
	}
}

func TestListWalksPages(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/things": func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Query().Get("page_token") {
			case "":
				w.Write([]byte(`{"things":[1,2],"next_page_token":"a b"}`))
			case "a b":
				w.Write([]byte(`{"next_page_token":"end"}`)) // an empty page is not the end
			case "end":
				w.Write([]byte(`{"things":[9007199254740993]}`))
			}
		},
	}}
	rows, err := f.client().list(t.Context(), "/v1/things", "things", 0)
	if err != nil || len(rows) != 3 || string(rows[2]) != "9007199254740993" {
		t.Errorf("%s %v", rows, err)
	}
	f.asked = nil
	rows, err = f.client().list(t.Context(), "/v1/things", "things", 2)
	if err != nil || len(rows) != 2 || !slices.Equal(f.asked, []string{"GET /v1/things?page_size=2"}) {
		t.Errorf("limit: %s %v, asked %q", rows, err, f.asked)
	}
}

func TestTokenAndServerFromEnvironment(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){"GET /v1/agents": say(`{"agents":[]}`)}}
	if stdout, stderr, code := muster(t, f, "agents", "list", "-o", "json"); code != 0 || stdout != "{\n  \"agents\": []\n}\n" {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(" secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_TOKEN", "another")
	if _, stderr, code := muster(t, f, "agents", "list", "--token-file", file); code != 0 {
		t.Errorf("a file that is named goes first: exit %d: %s", code, stderr)
	}
	if _, stderr, code := muster(t, f, "agents", "list", "--token-file", file+"-not"); code != 1 || !strings.Contains(stderr, "no token") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
