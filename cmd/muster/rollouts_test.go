package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func rolloutJSON(state, counts string) string {
	return fmt.Sprintf(`{"id":"R1","config":"nginx","version":3,"state":%q,"state_reason":"why","counts":{%s}}`, state, counts)
}

// fourTargets is a service with a rollout to four agents.
func fourTargets(t *testing.T, states ...func(http.ResponseWriter, *http.Request)) *fakeService {
	return &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/rollouts/R1":          inTurn(states...),
		"GET /v1/rollouts/R1/targets":  say(`{"targets":[{"agent_id":"a1","state":"FAILED","previous_version":2,"rolled_back":true,"reason":"check\u001b failed"},{"agent_id":"a4","state":"WAITING"}]}`),
		"GET /v1/agents":               say(`{"agents":[{"id":"a1","status":"ONLINE"},{"id":"a4","status":"OFFLINE"}]}`),
		"POST /v1/rollouts/R1/abort":   say(rolloutJSON("ABORTED", `"total":4,"applied":4`)),
		"POST /v1/groups/preview":      say(`{"total":0,"fleet":4}`),
		"GET /v1/configs/nginx":        say(nginx),
		"GET /v1/rollouts":             say(`{"rollouts":[` + rolloutJSON("DONE", `"total":4,"applied":4`) + `]}`),
		"GET /v1/configs/app/rollouts": say(`{"rollouts":[]}`),
	}}
}

func (w *watcher) run(t *testing.T, f *fakeService) (out string, code int) {
	t.Helper()
	var text, told strings.Builder
	w.client, w.stdout, w.progress = f.client(), &text, newProgress(io.Discard)
	raw, r, err := w.client.rollout(t.Context(), "R1", 0)
	if err != nil {
		t.Fatal(err)
	}
	code = exitCode(w.watch(t.Context(), raw, r), &told)
	return text.String() + told.String(), code
}

func TestWatchEndsWithTheOutcome(t *testing.T) {
	running := say(rolloutJSON("RUNNING", `"total":4,"waiting":3,"offered":1`))
	for _, tc := range []struct {
		state, counts string
		code          int
		says          string
	}{
		{"DONE", `"total":4,"applied":4`, 0, "R1: version 3 of nginx DONE (why): applied 4\n"},
		{"DONE", `"total":4,"applied":3,"failed":1`, 2, "a1     FAILED   2       true       check· failed\n"},
		{"DONE", `"total":4,"applied":3,"waiting":1`, 3, "waiting 1"},
		{"DONE", ``, 4, "no targets"},
		{"ROLLED_BACK", `"total":4,"applied":1,"failed":1,"waiting":2,"rolled_back":2`, 2, "ROLLED_BACK (why)"},
		{"ABORTED", `"total":4,"applied":1,"waiting":3`, 3, "ABORTED"},
		{"SUPERSEDED", `"total":4,"applied":1,"waiting":3`, 3, "SUPERSEDED"},
		{"SUPERSEDED", `"total":4,"vanished":1,"waiting":3`, 2, "vanished 1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := fourTargets(t, running, running, say(rolloutJSON(tc.state, tc.counts)))
			if out, code := (&watcher{}).run(t, f); code != tc.code || !strings.Contains(out, tc.says) || strings.Contains(out, "\x1b") {
				t.Errorf("%s %s: exit %d: %s", tc.state, tc.counts, code, out)
			}
		})
	}
}

// A halted rollout goes back by itself; where it does not, the watch ends.
func TestWatchOfAHaltedRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		halted := say(rolloutJSON("HALTED", `"total":4,"failed":1,"waiting":3`))
		f := fourTargets(t, halted, halted, halted, say(rolloutJSON("ROLLED_BACK", `"total":4,"failed":1,"waiting":3,"rolled_back":1`)))
		if out, code := (&watcher{}).run(t, f); code != exitFailed || !strings.Contains(out, "ROLLED_BACK") {
			t.Errorf("exit %d: %s", code, out)
		}
		f = fourTargets(t, say(`{"id":"R1","state":"HALTED","keep_on_halt":true,"state_reason":"failures: 1","counts":{"total":4,"failed":1,"waiting":3}}`))
		start := time.Now()
		if out, code := (&watcher{}).run(t, f); code != exitFailed || !strings.Contains(out, "halted: failures: 1; muster configs rollout resume R1") || time.Since(start) > 0 {
			t.Errorf("exit %d after %v: %s", code, time.Since(start), out)
		}
	})
}

func TestWatchDoesNotWaitForWhoIsOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := fourTargets(t, say(rolloutJSON("RUNNING", `"total":4,"applied":3,"waiting":1`)))
		if out, code := (&watcher{}).run(t, f); code != exitUnreached || time.Since(start) > 10*time.Second || !strings.Contains(out, "a4     WAITING") {
			t.Errorf("exit %d after %v: %s", code, time.Since(start), out)
		}
		start = time.Now()
		f = fourTargets(t, func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(start) < time.Hour {
				w.Write([]byte(rolloutJSON("RUNNING", `"total":4,"applied":3,"waiting":1`)))
			} else {
				w.Write([]byte(rolloutJSON("DONE", `"total":4,"applied":4`)))
			}
		})
		if out, code := (&watcher{waitOffline: true}).run(t, f); code != 0 || time.Since(start) < time.Hour || len(f.asked) > 50_000 {
			t.Errorf("exit %d after %v and %d questions: %s", code, time.Since(start), len(f.asked), out)
		}
	})
}

// Who was offline when a rollout was done is waited for, and counts.
func TestWatchWaitsForWhoComesAfterTheEnd(t *testing.T) {
	for status, code := range map[string]int{
		`"version":3,"status":"APPLIED","running_version":3,"wanted_version":3`: exitOK,
		`"version":3,"status":"FAILED","running_version":2,"wanted_version":3`:  exitFailed,
		`"version":2,"status":"APPLIED","running_version":2,"wanted_version":4`: exitUnreached,
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := fourTargets(t, say(rolloutJSON("DONE", `"total":4,"applied":3,"skipped":1`)))
			f.answers["GET /v1/rollouts/R1/targets"] = say(`{"targets":[{"agent_id":"a4","state":"SKIPPED"}]}`)
			f.answers["GET /v1/configs/nginx/status"] = func(w http.ResponseWriter, _ *http.Request) {
				if time.Since(start) < time.Hour {
					w.Write([]byte(`{"statuses":[{"agent_id":"a1","version":3,"status":"APPLIED","running_version":3,"wanted_version":3},{"agent_id":"a4","version":2,"status":"APPLIED","running_version":2,"wanted_version":3}]}`))
				} else {
					w.Write([]byte(`{"statuses":[{"agent_id":"a4",` + status + `}]}`))
				}
			}
			out, got := (&watcher{waitOffline: true}).run(t, f)
			if got != code || time.Since(start) < time.Hour || len(f.asked) > 10_000 || !strings.Contains(out, "later a4: ") || strings.Contains(out, "SKIPPED") != (code != exitOK) {
				t.Errorf("%s: exit %d after %v and %d questions: %s", status, got, time.Since(start), len(f.asked), out)
			}
			start = time.Now()
			if _, got := (&watcher{}).run(t, f); got != exitUnreached || time.Since(start) > time.Minute {
				t.Errorf("not asked to wait: exit %d after %v", got, time.Since(start))
			}
		})
	}
}

func TestWatchOutlivesARestartAndDetaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "UNAVAILABLE", "try again") }
		running := say(rolloutJSON("RUNNING", `"total":4,"waiting":4`))
		f := fourTargets(t, running, away, away, say(rolloutJSON("DONE", `"total":4,"applied":4`)))
		if out, code := (&watcher{}).run(t, f); code != 0 {
			t.Errorf("exit %d: %s", code, out)
		}
		f = fourTargets(t, running)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := &watcher{client: f.client(), stdout: io.Discard, progress: newProgress(io.Discard), waitOffline: true}
		var told strings.Builder
		if code := exitCode(w.watch(ctx, nil, configRollout{ID: "R1"}), &told); code != exitInterrupted || !strings.Contains(told.String(), "R1 goes on") {
			t.Errorf("exit %d: %s", code, told.String())
		}
	})
}

func TestRolloutIsStarted(t *testing.T) {
	for _, tc := range []struct {
		args, counts string
		code         int
		sent         []string
		says         string
	}{
		{"rollout start nginx --canary 1 --batch 10% -g web,db --keep-on-halt --note why", `"total":4,"applied":4`, 0,
			[]string{`{"version":3,"groups":["web","db"],"plan":{"canary":"1","batch":"10%"},"keep_on_halt":true,"note":"why"}`}, "DONE"},
		{"rollback nginx --to 2", `"total":4,"applied":4`, 0, []string{`{"version":2}`}, "DONE"},
		{"rollback nginx", `"total":4`, 1, nil, "--to N"},
		{"rollout start nginx --version 2 --dry-run", `"total":4,"waiting":4`, 0, nil, "AGENT  FROM  TO\na1     3     2\nversion 2 would go to 4 agents, 1 of them have another; nothing was changed"},
		{"rollout start nginx --detach", `"total":4`, 0, []string{`{"version":3}`}, "R1\n"},
		{"rollout start nginx", `"total":12,"waiting":12`, 1, nil, "12 of 20 agents; say --yes"},
		{"rollout start nginx --yes", `"total":12,"applied":12`, 0, []string{`{"version":3}`}, "DONE"},
		{"rollout list", ``, 0, nil, "R1       nginx   3        DONE   applied 4"},
		{"rollout list app", ``, 0, nil, "ROLLOUT"},
		{"rollout show R1", `"total":4,"applied":4`, 0, nil, "a1     FAILED   2       true"},
		{"rollout abort R1 --reason no", ``, 0, nil, "R1: ABORTED, applied 4"},
	} {
		var sent []string
		f := fourTargets(t, say(rolloutJSON("DONE", tc.counts)))
		f.answers["POST /v1/groups/preview"] = say(`{"fleet":20}`)
		f.answers["POST /v1/configs/preview"] = func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); !strings.Contains(string(b), `[{"fleet":true,"version":2},{"group":"web","version":2}]`) {
				t.Errorf("%s: preview of %s", tc.args, b)
			}
			w.Write([]byte(`{"total":4,"fleet":20,"changed":1,"changes":[{"agent_id":"a1","from_version":3,"to_version":2}]}`))
		}
		f.answers["POST /v1/configs/nginx/rollouts"] = func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); r.URL.Query().Get("dry_run") == "" {
				sent = append(sent, string(b))
			}
			if r.Header.Get("Idempotency-Key") == "" {
				t.Errorf("%s: no Idempotency-Key", tc.args)
			}
			w.Write([]byte(rolloutJSON("DONE", tc.counts)))
		}
		stdout, stderr, code := muster(t, f, append([]string{"configs"}, strings.Fields(tc.args)...)...)
		if code != tc.code || !slices.Equal(sent, tc.sent) || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%s: exit %d, sent %q\n%s%s", tc.args, code, sent, stdout, stderr)
		}
	}
}
