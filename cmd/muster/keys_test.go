package main

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const pendingKey = `{"id":"7be5","state":"PENDING","agent_id":"web-1","address":"10.0.0.7:4711","first_seen":"2026-11-30T06:33:20Z"}`

func TestKeysAreListed(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){"GET /v1/keys": say(`{"keys":[` + pendingKey + `]}`)}}
	stdout, stderr, code := muster(t, f, "keys", "pending")
	if code != 0 || !strings.Contains(stdout, "7be5  PENDING  web-1  10.0.0.7:4711") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if _, _, code := muster(t, f, "keys", "list", "-o", "json"); code != 0 {
		t.Errorf("exit %d", code)
	}
	if want := []string{"GET /v1/keys?page_size=1000&state=PENDING", "GET /v1/keys?page_size=1000"}; !slices.Equal(f.asked, want) {
		t.Errorf("asked %q", f.asked)
	}
}

func TestKeysAreDecided(t *testing.T) {
	for _, tc := range []struct{ args, verb, body string }{
		{"approve 7be5", "approve", ""},
		{"approve 7be5 --id web-2", "approve", `{"agent_id":"web-2"}`},
		{"revoke 7be5", "revoke", ""},
	} {
		var body string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"POST /v1/keys/7be5/" + tc.verb: func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				body = string(b)
				w.Write([]byte(`{"id":"7be5","state":"APPROVED","agent_id":"web-1"}`))
			},
		}}
		stdout, stderr, code := muster(t, f, append([]string{"keys"}, strings.Fields(tc.args)...)...)
		if code != 0 || body != tc.body || !strings.Contains(stdout, "7be5  APPROVED  web-1") {
			t.Errorf("%s: exit %d, body %s: %s%s", tc.args, code, body, stdout, stderr)
		}
	}
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/keys/7be5/approve": func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 409, "AGENT_HAS_KEY", `agent "web-1" has key 90ab; revoke that one first`)
		},
	}}
	if _, stderr, code := muster(t, f, "keys", "approve", "7be5"); code != 1 || !strings.Contains(stderr, "revoke that one first") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, _, code := muster(t, f, "keys", "approve"); code != 1 {
		t.Errorf("no key: exit %d", code)
	}
}
