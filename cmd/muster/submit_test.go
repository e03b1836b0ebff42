package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const doneCommand = `{"id":"C1","state":"DONE","counts":{"total":1,"succeeded":1}}`

// lossy is a network on which the first answers get lost. Their requests arrive.
type lossy struct {
	inProcess
	losses int
	err    error
	keys   []string // Idempotency-Keys of what was posted
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.inProcess.RoundTrip(r)
	if r.Method == "POST" {
		l.keys = append(l.keys, r.Header.Get("Idempotency-Key"))
		if len(l.keys) <= l.losses {
			return nil, l.err
		}
	}
	return resp, err
}

func oneTarget(t *testing.T) *fakeService {
	return &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/commands":           say(doneCommand),
		"GET /v1/commands/C1":         say(doneCommand),
		"GET /v1/commands/C1/targets": say(`{"targets":[{"command_id":"C1","agent_id":"a1","state":"SUCCEEDED","exit_code":0}]}`),
	}}
}

// A run whose answer is lost asks again, under the same key: it stays one
// command. Another run has another key.
func TestRunAsksAgainUnderOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		for range 2 {
			f := oneTarget(t)
			wire := &lossy{inProcess: inProcess{f}, losses: 3, err: io.ErrUnexpectedEOF}
			cl := f.client()
			cl.http.Transport = wire
			r := &runner{client: cl, stdout: io.Discard, progress: newProgress(io.Discard)}
			if err := r.run(t.Context(), &request{Target: selector{Agents: []string{"a1"}}}); err != nil {
				t.Fatal(err)
			}
			if len(wire.keys) != 4 || len(slices.Compact(slices.Clone(wire.keys))) != 1 || len(wire.keys[0]) < 16 {
				t.Errorf("keys %q, want one key four times", wire.keys)
			}
			keys = append(keys, wire.keys[0])
		}
		if keys[0] == keys[1] {
			t.Errorf("two runs have one key, %q", keys[0])
		}
	})
}

func TestRunTakesTheKeyThatIsGiven(t *testing.T) {
	var key string
	f := oneTarget(t)
	f.answers["POST /v1/commands"] = func(w http.ResponseWriter, r *http.Request) {
		key = r.Header.Get("Idempotency-Key")
		w.Write([]byte(doneCommand))
	}
	if _, stderr, code := muster(t, f, "run", "a1", "--idempotency-key", "deploy 7", "--", "true"); code != 0 || key != "deploy 7" {
		t.Errorf("exit %d, key %q: %s", code, key, stderr)
	}
}

// A server that was never there is an error at once; one that went away is
// waited for, but not for ever.
func TestRunDoesNotWaitForAServerThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
		for _, tc := range []struct {
			err  error
			want time.Duration
		}{{refused, 0}, {io.ErrUnexpectedEOF, patient}} {
			f := oneTarget(t)
			cl := f.client()
			cl.http.Transport = &lossy{inProcess: inProcess{f}, losses: 1000, err: tc.err}
			r := &runner{client: cl, stdout: io.Discard, progress: newProgress(io.Discard)}
			start := time.Now()
			err := r.run(t.Context(), &request{Target: selector{Agents: []string{"a1"}}})
			if took := time.Since(start); err == nil || took < tc.want || took > tc.want+5*time.Second {
				t.Errorf("%v: %v after %v, want an error after %v", tc.err, err, took, tc.want)
			}
		}
	})
}

// Ctrl-C while the answer is under way still tells the id; when no answer comes
// it says that nobody knows.
func TestRunInterruptedWhileItPosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			answer time.Duration
			want   string
		}{{1500 * time.Millisecond, "C1 goes on"}, {time.Hour, "muster commands list shows"}} {
			f := oneTarget(t)
			cl := f.client()
			cl.http.Transport = slow{inProcess{f}, tc.answer}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			r := &runner{client: cl, stdout: io.Discard, progress: newProgress(io.Discard)}
			var told strings.Builder
			code := exitCode(r.run(ctx, &request{Target: selector{Agents: []string{"a1"}}}), &told)
			cancel()
			if code != exitInterrupted || !strings.Contains(told.String(), tc.want) {
				t.Errorf("exit %d: %s, want %q", code, told.String(), tc.want)
			}
		}
	})
}

// slow is a network on which a request takes its time.
type slow struct {
	inProcess
	delay time.Duration
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.delay):
		return s.inProcess.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func TestRunDetachPrintsTheIDAlone(t *testing.T) {
	f := oneTarget(t)
	if stdout, stderr, code := muster(t, f, "run", "a1", "--detach", "--", "true"); code != 0 || stdout != "C1\n" || stderr != "" {
		t.Errorf("exit %d: %q %q", code, stdout, stderr)
	}
	if stdout, _, code := muster(t, f, "run", "a1", "-d", "-o", "json", "--", "true"); code != 0 || !strings.Contains(stdout, `"id": "C1"`) {
		t.Errorf("exit %d: %q", code, stdout)
	}
	if slices.ContainsFunc(f.asked, func(s string) bool { return strings.HasPrefix(s, "GET") }) {
		t.Errorf("asked %q", f.asked)
	}
}

// More than half of a fleet of over ten has to be meant.
func TestRunAsksBeforeMoreThanHalf(t *testing.T) {
	for _, tc := range []struct {
		preview, args string
		code          int
	}{
		{`{"total":11,"online":3,"fleet":20}`, "--all", exitError},
		{`{"total":11,"online":3,"fleet":20}`, "--all --yes", exitOK},
		{`{"total":10,"online":3,"fleet":20}`, "-l env=prod", exitOK},
		{`{"total":10,"online":3,"fleet":10}`, "--all", exitOK},
		{`{"total":6,"online":3,"fleet":11}`, "a1 a2 a3 a4 a5 a6", exitError},
		{`{"total":11,"online":3,"fleet":20}`, "a1", exitOK}, // cannot be more than half
	} {
		f := oneTarget(t)
		f.answers["POST /v1/commands/preview"] = say(tc.preview)
		_, stderr, code := muster(t, f, append(append([]string{"run"}, strings.Fields(tc.args)...), "--", "true")...)
		if code != tc.code {
			t.Errorf("%s for %s: exit %d, want %d: %s", tc.args, tc.preview, code, tc.code, stderr)
		}
		if posted := slices.Contains(f.asked, "POST /v1/commands"); posted != (tc.code == exitOK) {
			t.Errorf("%s for %s: posted %v", tc.args, tc.preview, posted)
		}
		if tc.code == exitError && !(strings.Contains(stderr, "of 11 agents") || strings.Contains(stderr, "11 of 20")) {
			t.Errorf("%s", stderr)
		}
	}
}

func TestDryRunSendsNothing(t *testing.T) {
	f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
		"POST /v1/commands/preview": inTurn(
			say(`{"total":2,"online":1,"fleet":30,"targets":[{"agent_id":"a1","reason":"ONLINE"}],"next_page_token":"p2"}`),
			say(`{"total":2,"online":1,"fleet":30,"targets":[{"agent_id":"a2","reason":"OFFLINE"}]}`)),
	}}
	stdout, stderr, code := muster(t, f, "run", "--all", "--dry-run", "--", "true")
	want := "AGENT  STATUS\na1     ONLINE\na2     OFFLINE\n2 of 30 agents, 1 of them online; nothing was sent\n"
	if code != 0 || stdout != want {
		t.Errorf("exit %d\n got %s%s\nwant %s", code, stdout, stderr, want)
	}
	if len(f.asked) != 2 || !strings.Contains(f.asked[1], "page_token=p2") {
		t.Errorf("asked %q", f.asked)
	}
}
