package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

const outputOfA1 = "GET /v1/commands/C1/targets/a1/output"

func outputService(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *fakeService {
	return &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){outputOfA1: answer}}
}

func TestOutputRange(t *testing.T) {
	f := outputService(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "bytes=-5" {
			t.Errorf("Range %q", r.Header.Get("Range"))
		}
		w.WriteHeader(http.StatusPartialContent)
		w.Write([]byte("world"))
	})
	if stdout, stderr, code := muster(t, f, "commands", "output", "C1", "a1", "--range=-5"); code != 0 || stdout != "world" {
		t.Errorf("exit %d: %q %s", code, stdout, stderr)
	}
	// All of it is not what was asked for.
	f = outputService(t, say("hello world"))
	if stdout, stderr, code := muster(t, f, "commands", "output", "C1", "a1", "--range", "0-4"); code != 1 || stdout != "" || !strings.Contains(stderr, "no ranges") {
		t.Errorf("exit %d: %q %s", code, stdout, stderr)
	}
	if _, _, code := muster(t, f, "commands", "output", "C1", "a1", "--range", "0-4", "--follow"); code != 1 {
		t.Errorf("both: exit %d", code)
	}
}

// What is cut out of the middle is not passed over in silence.
func TestOutputTellsItsGap(t *testing.T) {
	f := outputService(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Muster-Output-Truncated", "true")
		w.Header().Set("Muster-Output-Size", "5000000")
		w.Header().Set("Muster-Output-Head", "4")
		w.Header().Set("Muster-Output-Kept", "6")
		w.Write([]byte("headtl"))
	})
	stdout, stderr, code := muster(t, f, "commands", "output", "C1", "a1")
	if code != 0 || stdout != "headtl" || !strings.Contains(stderr, "wrote 5000000 bytes") || !strings.Contains(stderr, "start (4 bytes)") {
		t.Errorf("exit %d: %q %s", code, stdout, stderr)
	}
}

// Followed output whose connection is cut goes on where it was.
func TestOutputFollowGoesOnAfterACut(t *testing.T) {
	cutAfter := func(text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("follow") != "1" {
				t.Errorf("asked %s", r.URL)
			}
			w.Write([]byte(text))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	away := func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "STOPPING", "the server is stopping") }
	f := outputService(t, inTurn(cutAfter("one\ntw"), away, cutAfter("one\n"), say("one\ntwo\nthree\n")))
	stdout, stderr, code := muster(t, f, "commands", "output", "C1", "a1", "--follow")
	if code != 0 || stdout != "one\ntwo\nthree\n" || strings.Count(stderr, "trying again") != 3 {
		t.Errorf("exit %d: %q %s", code, stdout, stderr)
	}
}

func TestOutputFollowEndsAtCtrlC(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	at(t, outputService(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("one\n"))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	var stdout, stderr strings.Builder
	code := run(ctx, []string{"muster", "commands", "output", "C1", "a1", "-f"}, writerFunc(func(b []byte) (int, error) {
		defer cancel()
		return stdout.Write(b)
	}), &stderr)
	if code != exitInterrupted || stdout.String() != "one\n" || stderr.String() != "" {
		t.Errorf("exit %d: %q %q", code, stdout.String(), stderr.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
