package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// inProcess is a network on which a request is a call, so that fake time may
// pass while it waits.
type inProcess struct{ http.Handler }

func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// fakeService answers requests such as "GET /v1/agents" from a table; it notes
// what it was asked.
type fakeService struct {
	t       *testing.T
	answers map[string]func(w http.ResponseWriter, r *http.Request)
	asked   []string
}

func (f *fakeService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.Method+" "+r.URL.RequestURI())
	if got := r.Header.Get("Authorization"); got != "Bearer secret" {
		f.t.Errorf("Authorization %q", got)
	}
	answer := f.answers[r.Method+" "+r.URL.Path]
	if answer == nil {
		refuse(w, 404, "NOT_FOUND", "there is nothing at this path")
		return
	}
	answer(w, r)
}

func (f *fakeService) client() *client {
	return &client{base: "http://muster.test", token: "secret", http: &http.Client{Transport: inProcess{f}}}
}

func say(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(text)) }
}

// inTurn gives one answer after the other, and then the last for ever.
func inTurn(answers ...func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		answer(w, r)
	}
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"status": status, "code": code, "detail": detail})
}

// at makes a service the server of the command lines that follow.
func at(t *testing.T, h http.Handler) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handlers panic on purpose
	srv.Start()
	t.Cleanup(srv.Close)
	t.Setenv("MUSTER_SERVER", srv.URL)
	t.Setenv("MUSTER_TOKEN", "secret")
}

// muster runs the command line against a service on a real port.
func muster(t *testing.T, h http.Handler, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	at(t, h)
	var out, errOut strings.Builder
	code = run(t.Context(), append([]string{"muster"}, args...), &out, &errOut)
	return out.String(), errOut.String(), code
}
