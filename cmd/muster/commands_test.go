package main

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestCommandsListWritesOneFilter(t *testing.T) {
	for _, tc := range []struct {
		args, order, filter string
	}{
		{"", "desc", ""},
		{"--order asc", "asc", ""},
		{"--state failed,open", "desc", `state in ["FAILED", "OPEN"]`},
		{`--type exec -l env=prod -l a"b=c --agent web-1`, "desc",
			`type == "exec" && labels["env"] == "prod" && labels["a\"b"] == "c" && "web-1" in agents`},
		{"--filter name=='x'||name=='y' --type ping", "desc", `type == "ping" && (name=='x'||name=='y')`},
		{"--since 2026-11-30T06:33:20+01:00", "desc", `create_time >= timestamp("2026-11-30T05:33:20Z")`},
	} {
		var got url.Values
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/commands": func(w http.ResponseWriter, r *http.Request) {
				got = r.URL.Query()
				w.Write([]byte(`{"commands":[]}`))
			},
		}}
		_, stderr, code := muster(t, f, append([]string{"commands", "list"}, strings.Fields(tc.args)...)...)
		if code != 0 || got.Get("filter") != tc.filter || got.Get("order") != tc.order {
			t.Errorf("%s: exit %d, %v %s\nwant %s", tc.args, code, got, stderr, tc.filter)
		}
	}
	for _, args := range []string{"--order up", "--label env", "--since soon", "--since -2h", "web-1"} {
		if _, _, code := muster(t, &fakeService{t: t}, append([]string{"commands", "list"}, strings.Fields(args)...)...); code != 1 {
			t.Errorf("%s: exit %d", args, code)
		}
	}
}

func TestCommandsAreSteered(t *testing.T) {
	for _, verb := range []string{"cancel", "pause", "resume"} {
		var body string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"POST /v1/commands/C1/" + verb: func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				body = string(b)
				w.Write([]byte(`{"id":"C1","state":"PAUSED","counts":{"total":2,"queued":2}}`))
			},
		}}
		stdout, stderr, code := muster(t, f, "commands", verb, "C1", "--reason", "too hot")
		if code != 0 || body != `{"reason":"too hot"}` || stdout != "C1: PAUSED, queued 2\n" {
			t.Errorf("%s: exit %d, body %s: %s%s", verb, code, body, stdout, stderr)
		}
		if _, _, code = muster(t, f, "commands", verb, "C1"); code != 0 || body != "" {
			t.Errorf("%s without a reason: exit %d, body %s", verb, code, body)
		}
		f.answers["POST /v1/commands/C1/"+verb] = func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 409, "COMMAND_ENDED", "command C1 has ended")
		}
		if _, stderr, code := muster(t, f, "commands", verb, "C1"); code != 1 || !strings.Contains(stderr, "has ended") {
			t.Errorf("%s of an ended one: exit %d: %s", verb, code, stderr)
		}
	}
}

func TestCommandsShowTellsTheRollout(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/commands/C1": say(`{"id":"C1","type":"exec","labels":{"ticket":"7"},"target":{"where":"true"},"rollout":{"canary":1,"batch":"10%","max_failures":2},"state":"HALTED","state_reason":"3 failures, 2 allowed","counts":{"total":9,"queued":6,"failed":3}}`),
	}}
	stdout, stderr, code := muster(t, f, "commands", "show", "C1")
	for _, want := range []string{"where true", "ticket=7", "canary 1, batch 10%, max failures 2", "3 failures, 2 allowed", "queued 6, failed 3"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, no %q in\n%s%s", code, want, stdout, stderr)
		}
	}
}

func TestTargetsOfOneState(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){"GET /v1/commands/C1/targets": say(`{"targets":[]}`)}}
	if _, stderr, code := muster(t, f, "commands", "targets", "C1", "--state", "failed,lost"); code != 0 ||
		!slices.Contains(f.asked, "GET /v1/commands/C1/targets?page_size=1000&state=FAILED%2CLOST") {
		t.Errorf("exit %d: %q %s", code, f.asked, stderr)
	}
}
