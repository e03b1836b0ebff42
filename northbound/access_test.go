package northbound

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logbook is a log that a test reads.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logbook) config(level slog.Level) Config {
	return Config{Log: slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))}
}

type accessLine struct {
	Level, Msg, Method, Route string
	Status                    int
	Duration                  time.Duration
}

// requests are the access lines so far.
func (l *logbook) requests(t *testing.T) (lines []accessLine) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var a accessLine
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if a.Msg == "request" {
			lines = append(lines, a)
		}
	}
	return lines
}

func TestAccessLogTellsRoutesAndNothingSent(t *testing.T) {
	log := &logbook{}
	s := service(t, working(), log.config(slog.LevelDebug))
	for _, tc := range []struct {
		method, target, body string
		route                string
		status               int
	}{
		{"GET", "/v1/agents/s3cret-id?x=s3cret", "", "/v1/agents/:id", 400},
		{"GET", "/v1/agents/s3cret-id", "", "/v1/agents/:id", 200},
		{"HEAD", "/v1/agents/s3cret-id", "", "/v1/agents/:id", 200},
		{"POST", "/v1/commands", `{"type":"exec","input":{"password":"s3cret"}}`, "/v1/commands", 202},
		{"POST", "/v1/commands", `{"s3cret":1}`, "/v1/commands", 422},
		{"DELETE", "/v1/commands", "", "/v1/commands", 405},
		{"OPTIONS", "/v1/commands/preview", "", "/v1/commands/preview", 204},
		{"GET", "/v1/commands/preview", "", "/v1/commands/:id", 200},
		{"GET", "/s3cret", "", "", 404},
		{"GET", "/v1/agents/%FF", "", "/v1/agents/:id", 400},
	} {
		got := s.do(t, tc.method, tc.target, tc.body, "Authorization: Bearer s3cret")
		lines := log.requests(t)
		last := lines[len(lines)-1]
		if got.status != tc.status || last.Status != tc.status || last.Method != tc.method || last.Route != tc.route || last.Level != "DEBUG" {
			t.Errorf("%s %s: %d, logged as %+v", tc.method, tc.target, got.status, last)
		}
	}
	if got := len(log.requests(t)); got != 10 {
		t.Errorf("%d lines for 10 requests", got)
	}
	if strings.Contains(log.text.String(), "s3cret") {
		t.Errorf("the log tells %s", log.text.String())
	}
}

func TestAccessLogTellsOfCutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logbook{}
		fake, p := running()
		n := serve(t, fake, log.config(slog.LevelDebug))
		_, l := n.following(t)
		time.Sleep(time.Minute)
		if got := log.requests(t); len(got) > 0 {
			t.Errorf("logged before the end: %+v", got)
		}
		close(p.out)
		l.wantCut(t)
		synctest.Wait()
		want := accessLine{"DEBUG", "request", "GET", "/v1/commands/:id/targets/:agent/output", 200, time.Minute}
		if got := log.requests(t); len(got) != 1 || got[0] != want {
			t.Errorf("logged %+v", got)
		}
	})
}

func TestAccessLogIsForDebugging(t *testing.T) {
	log := &logbook{}
	n := serve(t, working(), log.config(slog.LevelInfo))
	c := n.dial(t)
	c.send(t, "GET /v1/agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nConnection: close\r\n\r\n")
	if _, err := io.Copy(io.Discard, c.in); err != nil {
		t.Fatal(err)
	}
	if got := log.requests(t); len(got) > 0 {
		t.Errorf("logged %+v", got)
	}
}
