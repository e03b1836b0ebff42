package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// agents show answers why nothing happens.
func TestAgentsShowSaysWhatItWaitsFor(t *testing.T) {
	for _, tc := range []struct{ agent, want string }{
		{`"status":"OFFLINE","queue":{"waiting":3,"oldest_command_id":"C1"}`, "waits for   the agent to come back"},
		{`"status":"SUSPECT","queue":{"waiting":3}`, "waits for   a sign of life"},
		{`"status":"ONLINE","maintenance":true,"queue":{"waiting":1}`, "waits for   the end of its maintenance: muster agents maintenance a1 off"},
		{`"status":"ONLINE","maintenance":true,"queue":{}`, "status      ONLINE (maintenance)"},
		{`"status":"ONLINE","queue":{"waiting":1,"in_flight":64}`, "queue       1 waiting, 64 in flight"},
		{`"status":"ONLINE","queue":{"waiting":1,"in_flight":64}`, "those in flight to end"},
		{`"status":"ONLINE","queue":{"waiting":1}`, "a command that is paused"},
		{`"status":"ONLINE","queue":{"last_refusal":"Busy: queue full","last_refusal_time":"2026-11-30T06:33:20Z"}`, "refused     Busy: queue full (2026-11-30 "},
		{`"status":"ONLINE","plugins":[{"name":"greet","version":"1.2","description":"says hello"},{"name":"bad","error":"not\nexecutable"}]`, "plugin      greet 1.2 says hello\nplugin      bad: not·executable\n"},
	} {
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){"GET /v1/agents/a1": say(`{"id":"a1",` + tc.agent + `}`)}}
		stdout, stderr, code := muster(t, f, "agents", "show", "a1")
		if code != 0 || !strings.Contains(stdout, tc.want) {
			t.Errorf("%s: exit %d, no %q in\n%s%s", tc.agent, code, tc.want, stdout, stderr)
		}
	}
}

func TestAgentsMaintenance(t *testing.T) {
	for word, want := range map[string]string{"on": `{"maintenance":true}`, "off": `{"maintenance":false}`} {
		var body string
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"PUT /v1/agents/a1/maintenance": func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				body = string(b)
				w.Write([]byte(`{"id":"a1","status":"ONLINE"}`))
			},
		}}
		if stdout, stderr, code := muster(t, f, "agents", "maintenance", "a1", word); code != 0 || body != want || !strings.Contains(stdout, "a1") {
			t.Errorf("%s: exit %d, body %s: %s%s", word, code, body, stdout, stderr)
		}
	}
	for _, args := range []string{"a1", "a1 maybe", "on", "a1 on off"} {
		if _, _, code := muster(t, &fakeService{t: t}, append([]string{"agents", "maintenance"}, strings.Fields(args)...)...); code != 1 {
			t.Errorf("%s: exit %d", args, code)
		}
	}
}

func TestAgentsListMarksADouble(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/agents": say(`{"agents":[{"id":"a1","status":"ONLINE","conflict":{"address":"10.0.0.1:5"}}]}`),
	}}
	if stdout, _, code := muster(t, f, "agents", "list"); code != 0 || !strings.Contains(stdout, "ONLINE (conflict)") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

func TestAgentShowTellsItsGroupsAndItsDouble(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/agents/a1": say(`{"id":"a1","status":"OFFLINE","left":true,"groups":["eu","web"],"conflict":{"address":"10.0.0.1:5","refused_address":"10.0.0.2:6","time":"2026-11-30T06:33:20Z"}}`),
	}}
	stdout, stderr, code := muster(t, f, "agents", "show", "a1")
	for _, want := range []string{"OFFLINE (left)", "groups      eu, web\n", "10.0.0.1:5 has the id", "from 10.0.0.2:6, machine unknown"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, no %q in\n%s%s", code, want, stdout, stderr)
		}
	}
}
