package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// follows runs a command whose states come in turn, and returns the exit code,
// what was told of the progress, the error's text and the time that it took.
func follows(t *testing.T, f *fakeService) (code int, progress, told string, took time.Duration) {
	t.Helper()
	var line, text strings.Builder
	r := &runner{client: f.client(), stdout: io.Discard, progress: newProgress(&line)}
	start := time.Now()
	code = exitCode(r.run(t.Context(), &request{Target: selector{Agents: []string{"a1", "a2"}}}), &text)
	return code, line.String(), text.String(), time.Since(start)
}

// A halted command is followed until what it had sent is final.
func TestRunEndsWhenTheRolloutIsHalted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoTargets(t,
			say(`{"id":"C1","state":"HALTED","state_reason":"1 failures, 0 allowed","counts":{"total":9,"queued":7,"running":1,"failed":1}}`),
			say(`{"id":"C1","state":"HALTED","state_reason":"1 failures, 0 allowed","counts":{"total":9,"queued":7,"succeeded":1,"failed":1}}`))
		code, progress, told, took := follows(t, f)
		if code != exitFailed || took > 5*time.Second {
			t.Errorf("exit %d after %v", code, took)
		}
		for _, want := range []string{"1 failures, 0 allowed", "7 targets were not sent", "muster commands resume C1"} {
			if !strings.Contains(told, want) {
				t.Errorf("%q not told: %s", want, told)
			}
		}
		if !strings.Contains(progress, "HALTED: 1 failures, 0 allowed") {
			t.Errorf("progress: %s", progress)
		}
	})
}

// What is in flight on an agent that is gone does not hold up the end of a
// halted command, though agents with nothing in flight are online.
func TestRunOfAHaltedCommandDoesNotWaitForTheOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoTargets(t, say(`{"id":"C1","state":"HALTED","state_reason":"x","counts":{"total":2,"queued":1,"sent":1}}`))
		f.answers["GET /v1/commands/C1/targets"] = say(`{"targets":[{"agent_id":"a1","state":"QUEUED"},{"agent_id":"a2","state":"SENT"}]}`)
		if code, _, _, took := follows(t, f); code != exitFailed || took > 10*time.Second {
			t.Errorf("exit %d after %v", code, took)
		}
	})
}

func TestRunGoesOnWaitingWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := twoTargets(t, func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(start) < 30*time.Minute {
				w.Write([]byte(`{"id":"C1","state":"PAUSED","state_reason":"lunch","counts":{"total":2,"queued":1,"succeeded":1}}`))
			} else {
				w.Write([]byte(`{"id":"C1","state":"DONE","counts":{"total":2,"succeeded":2}}`))
			}
		})
		f.answers["GET /v1/agents"] = say(`{"agents":[{"id":"a1","status":"ONLINE"},{"id":"a2","status":"ONLINE"}]}`)
		code, progress, _, took := follows(t, f)
		if code != exitOK || took < 30*time.Minute {
			t.Errorf("exit %d after %v", code, took)
		}
		if strings.Count(progress, "PAUSED: lunch") != 1 {
			t.Errorf("progress: %s", progress)
		}
	})
}

func TestRunDoesNotWaitForMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoTargets(t, say(openCommand))
		f.answers["GET /v1/agents"] = say(`{"agents":[{"id":"a1","status":"ONLINE"},{"id":"a2","status":"ONLINE","maintenance":true}]}`)
		if code, _, _, took := follows(t, f); code != exitUnreached || took > 10*time.Second {
			t.Errorf("exit %d after %v", code, took)
		}
	})
}

// A command that somebody cancels is followed until its programs have ended.
func TestRunOfACancelledCommandWaitsForItsPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := twoTargets(t, func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(start) < 10*time.Second {
				w.Write([]byte(`{"id":"C1","state":"CANCELLED","counts":{"total":2,"running":1,"cancelled":1}}`))
			} else {
				w.Write([]byte(`{"id":"C1","state":"CANCELLED","counts":{"total":2,"interrupted":1,"cancelled":1}}`))
			}
		})
		f.answers["GET /v1/commands/C1/targets"] = say(`{"targets":[{"agent_id":"a1","state":"RUNNING"}]}`)
		if code, _, _, took := follows(t, f); code != exitFailed || took < 10*time.Second {
			t.Errorf("exit %d after %v", code, took)
		}
	})
}
