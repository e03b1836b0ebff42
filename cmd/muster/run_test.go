package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const openCommand = `{"id":"C1","state":"OPEN","counts":{"total":2,"queued":1,"succeeded":1}}`

// twoTargets is a service with a command for a1 and a2.
func twoTargets(t *testing.T, states ...func(http.ResponseWriter, *http.Request)) *fakeService {
	return &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/commands":                     say(openCommand),
		"POST /v1/commands/preview":             say(`{"total":2,"online":1,"fleet":2}`),
		"GET /v1/commands/C1":                   inTurn(states...),
		"GET /v1/commands/C1/targets":           say(`{"targets":[{"command_id":"C1","agent_id":"a1","state":"SUCCEEDED","exit_code":0,"stdout":{"kept":3}},{"command_id":"C1","agent_id":"a2","state":"QUEUED"}]}`),
		"GET /v1/agents":                        say(`{"agents":[{"id":"a1","status":"ONLINE"},{"id":"a2","status":"OFFLINE"}]}`),
		"GET /v1/commands/C1/targets/a1/output": say("\x1b[31mred\x07\nmore\n"),
	}}
}

func TestRunDoesNotWaitForWhoIsOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoTargets(t, say(openCommand))
		var out strings.Builder
		r := &runner{client: f.client(), stdout: &out, progress: newProgress(io.Discard)}
		start := time.Now()
		code := exitCode(r.run(t.Context(), &request{}), io.Discard)
		if code != exitUnreached || time.Since(start) > 10*time.Second {
			t.Errorf("exit %d after %v", code, time.Since(start))
		}
		if !strings.Contains(out.String(), "QUEUED") || !strings.Contains(out.String(), "·[31mred·") || strings.ContainsAny(out.String(), "\x1b\x07") {
			t.Errorf("%q", out.String())
		}
	})
}

func TestRunWaitsForTheOfflineWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := twoTargets(t, func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(start) < time.Hour {
				w.Write([]byte(openCommand))
			} else {
				w.Write([]byte(`{"id":"C1","state":"DONE","counts":{"total":2,"succeeded":2}}`))
			}
		})
		r := &runner{client: f.client(), stdout: io.Discard, progress: newProgress(io.Discard), waitOffline: true}
		if code := exitCode(r.run(t.Context(), &request{}), io.Discard); code != exitOK || time.Since(start) < time.Hour {
			t.Errorf("exit %d after %v", code, time.Since(start))
		}
		if n := len(f.asked); n > 50_000 {
			t.Errorf("asked %d times in an hour", n)
		}
	})
}

// A server that starts again in between is waited for; one that stays away is
// reported, with the id.
func TestRunOutlivesARestartOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "UNAVAILABLE", "try again") }
		f := twoTargets(t, say(openCommand), away, away, say(`{"id":"C1","state":"DONE","counts":{"total":2,"succeeded":1,"failed":1}}`))
		r := &runner{client: f.client(), stdout: io.Discard, progress: newProgress(io.Discard)}
		if code := exitCode(r.run(t.Context(), &request{}), io.Discard); code != exitFailed {
			t.Errorf("exit %d", code)
		}

		f = twoTargets(t, away)
		start := time.Now()
		r.client = f.client()
		err := r.run(t.Context(), &request{})
		if err == nil || !strings.Contains(err.Error(), "C1") || time.Since(start) < 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestRunDetaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoTargets(t, say(openCommand))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var told strings.Builder
		r := &runner{client: f.client(), stdout: io.Discard, progress: newProgress(io.Discard), waitOffline: true}
		if code := exitCode(r.run(ctx, &request{}), &told); code != exitInterrupted || !strings.Contains(told.String(), "C1") {
			t.Errorf("exit %d: %s", code, told.String())
		}
	})
}

func TestRunForNobody(t *testing.T) {
	nobody := func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 422, "NO_TARGETS", "target.all: no agent is known yet")
	}
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/commands": nobody, "POST /v1/commands/preview": nobody,
	}}
	for _, args := range []string{"run --all -- true", "run --all --yes -- true", "run --all --dry-run -- true"} {
		if _, stderr, code := muster(t, f, strings.Fields(args)...); code != exitNoTargets || !strings.Contains(stderr, "no agent is known") {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct {
		counts counts
		want   int
	}{
		{counts{}, exitNoTargets},
		{counts{Total: 2, Succeeded: 2}, exitOK},
		{counts{Total: 3, Succeeded: 2, Failed: 1}, exitFailed},
		{counts{Total: 3, Succeeded: 1, TimedOut: 1, Expired: 1}, exitFailed},
		{counts{Total: 1, Interrupted: 1}, exitFailed},
		{counts{Total: 1, Rejected: 1}, exitFailed},
		{counts{Total: 2, Succeeded: 1, Lost: 1}, exitUnreached},
		{counts{Total: 2, Succeeded: 1, Expired: 1}, exitUnreached},
		{counts{Total: 2, Succeeded: 1, Cancelled: 1}, exitUnreached},
		{counts{Total: 2, Succeeded: 1, Queued: 1}, exitUnreached},
	} {
		if got := exitCode(outcome(command{State: "DONE", Counts: tc.counts}), io.Discard); got != tc.want {
			t.Errorf("%+v: exit %d, want %d", tc.counts, got, tc.want)
		}
	}
}

func TestRunBuildsItsRequest(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		want string // of the body, or of stderr
	}{
		{"web-1 web-2 --timeout 30s --name up -- uptime -p", 0,
			`{"type":"exec","name":"up","input":{"argv":["uptime","-p"]},"target":{"agents":["web-1","web-2"]},"timeout":"30s","when_offline":"CANCEL"}`},
		{"--all -- echo -- --all", 0, `{"type":"exec","input":{"argv":["echo","--","--all"]},"target":{"all":true},"when_offline":"CANCEL"}`},
		{"--all --type ping --wait-offline", 0, `{"type":"ping","target":{"all":true},"when_offline":"QUEUE"}`},
		{`--all --type t --input {"n":9007199254740993} --when-offline queue --expires-in 2d`, 0,
			`{"type":"t","input":{"n":9007199254740993},"target":{"all":true},"expires_in":"2d","when_offline":"QUEUE"}`},
		{"-l env=prod,role=db -l zone=a -- x", 0, `"target":{"where":"tags[\"env\"] == \"prod\" \u0026\u0026 tags[\"role\"] == \"db\" \u0026\u0026 tags[\"zone\"] == \"a\""}`},
		{`--where os=="linux"||arch=="arm64" --tag a"b=c\d -- x`, 0, `"target":{"where":"(os==\"linux\"||arch==\"arm64\") \u0026\u0026 tags[\"a\\\"b\"] == \"c\\\\d\""}`},
		{"--all --canary 1 --batch 10% --max-failures 2 --pause-between 5s --vanish-after 30s -- x", 0,
			`"rollout":{"canary":"1","batch":"10%","max_failures":"2","pause_between":"5s","vanish_after":"30s"}`},
		{"web-1 --label ticket=OPS-7 --label by=me --idempotent -- x", 0, `"idempotent":true,"labels":{"by":"me","ticket":"OPS-7"}`},
		{"-g web,db -g eu -- x", 0, `"target":{"groups":["web","db","eu"]}`},
		{"-g web -l env=prod -- x", 1, "not both"},
		{"web-1 --all -- x", 1, "not both"},
		{"web-1 -l env=prod -- x", 1, "not both"},
		{"--all --where true -- x", 1, "not both"},
		{"-l env -- x", 1, "NAME=VALUE"},
		{"web-1 --label =x -- x", 1, "NAME=VALUE"},
		{"web-1 --label a=1 --label a=2 -- x", 1, "twice"},
		{"web-1 -- echo \xff", 1, "not UTF-8"},
		{"-- x", 4, "no targets"},
		{"web-1", 1, "needs"},
		{"web-1 --", 1, "nothing to run"},
		{"web-1 --input {} -- x", 1, "without --input"},
		{"web-1 --type ping -- x", 1, "without --input"},
		{"web-1 --input {", 1, "not JSON"},
		{"web-1 --when-offline never -- x", 1, "never"},
		{"web-1 -o yaml -- x", 1, "yaml"},
	} {
		var body json.RawMessage
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"POST /v1/commands/preview": say(`{"total":1,"online":1,"fleet":1}`),
			"POST /v1/commands": func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				body = b
				w.Write([]byte(`{"id":"C1","state":"OPEN","counts":{"total":1,"queued":1}}`))
			},
			"GET /v1/commands/C1":         say(`{"id":"C1","state":"DONE","counts":{"total":1,"succeeded":1}}`),
			"GET /v1/commands/C1/targets": say(`{"targets":[{"agent_id":"a1","state":"SUCCEEDED"}]}`),
		}}
		_, stderr, code := muster(t, f, append([]string{"run"}, strings.Fields(tc.args)...)...)
		got := string(body)
		if tc.code != 0 {
			got = stderr
		}
		if code != tc.code || !strings.Contains(got, tc.want) {
			t.Errorf("muster run %s: exit %d, want %d\n got %s%s\nwant %s", tc.args, code, tc.code, body, stderr, tc.want)
		}
	}
}
