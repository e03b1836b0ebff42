package northbound

import (
	"context"
	"io"
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// exposition is a handler of metrics that counts its calls.
type exposition struct{ calls int }

func (e *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.calls++
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, "up 1 "+r.URL.RawQuery+"\n")
}

func TestMetricsNeedAToken(t *testing.T) {
	fake := working()
	fake.agents.list = func(ctx context.Context, r *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if given := md.Get("authorization"); len(given) != 1 || given[0] != "Bearer good" {
			return nil, refused(codes.Unauthenticated, "a valid bearer token is needed")
		}
		return &musterv1.ListAgentsResponse{}, nil
	}
	e := &exposition{}
	s := service(t, fake, Config{Metrics: e})
	for _, token := range []string{"", "Bearer", "Bearer bad"} {
		for _, method := range []string{"GET", "HEAD"} {
			if got := s.do(t, method, "/metrics", "", "Authorization: "+token); got.status != 401 || got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %q: %d", method, token, got.status)
			}
		}
	}
	if e.calls > 0 {
		t.Errorf("told %d times without a token", e.calls)
	}
	got := s.do(t, "GET", "/metrics?name%5B%5D=up", "", "Authorization: Bearer good")
	if got.status != 200 || string(got.body) != "up 1 name%5B%5D=up\n" || got.header.Get("Content-Type") != "text/plain; version=0.0.4" {
		t.Errorf("got %d %q %v", got.status, got.body, got.header)
	}
}

func TestOpenMetricsNeedNobody(t *testing.T) {
	n := serve(t, &coordinator{}, Config{Metrics: &exposition{}, OpenMetrics: true}) // a call would be 500
	ask := func(method, path string) *reply {
		c := n.dial(t)
		c.send(t, method+" "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		return c.answer(t, method)
	}
	if got := ask("GET", "/metrics"); got.status != 200 || string(got.body) != "up 1 \n" {
		t.Errorf("got %d %q", got.status, got.body)
	}
	if got := ask("HEAD", "/metrics"); got.status != 200 || len(got.body) > 0 {
		t.Errorf("HEAD: %d %q", got.status, got.body)
	}
	if got := ask("OPTIONS", "/metrics"); got.status != 204 || got.header.Get("Allow") != "OPTIONS, GET, HEAD" {
		t.Errorf("OPTIONS: %d %v", got.status, got.header)
	}
	ask("POST", "/metrics").want(t, 405, "METHOD_NOT_ALLOWED")
	ask("GET", "/metrics/").want(t, 404, "NOT_FOUND")
	if got := ask("GET", "/v1/agents"); got.status != 401 {
		t.Errorf("the rest is open, too: %d", got.status)
	}
}

func TestWithoutMetricsThereIsNoPath(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := service(t, working(), Config{OpenMetrics: open})
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			s.do(t, method, "/metrics", "").want(t, 404, "NOT_FOUND")
		}
	}
}
