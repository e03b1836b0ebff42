package northbound

import (
	"net/http"
	"strings"
	"testing"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// A condition that cannot be checked is refused: ignored, it would let
// somebody's change be lost.
func TestBadConditionsPutNothing(t *testing.T) {
	fake := working()
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
		t.Errorf("put %v", r)
		return &musterv1.Group{}, nil
	}
	fake.configs.put = func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
		t.Errorf("put %v", r)
		return &musterv1.Config{}, nil
	}
	n := serve(t, fake)
	for _, headers := range []string{
		"If-Match: e1, e2", "If-Match: W/e1", `If-Match: e1"`, `If-Match: W/"e1"`, `If-Match: "e1", "e2"`, `If-Match: "e1"` + "\r\n" + `If-Match: "e2"`, `If-Match: ""`, `If-Match: "*"`, "If-Match:",
		`If-Match: "`, `If-Match: "a b"`, "If-Match: \"\xc3\xa9\"", `If-Match: "a"b"`, `If-None-Match: "e1"`, "If-None-Match:", "If-None-Match: *\r\nIf-Match: *",
		"If-None-Match: *, *",
	} {
		for _, path := range []string{"/v1/groups/web", "/v1/configs/nginx"} {
			c := n.dial(t)
			c.send(t, "PUT "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"+headers+"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			c.answer(t, "PUT").want(t, 400, "INVALID_CONDITION")
		}
	}
}

// The header of an answer has its ETag in quotes, the body has it bare.
func TestETagIsTakenAsItWasShown(t *testing.T) {
	fake := working()
	var asked string
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
		asked = r.GetIfMatch()
		return &musterv1.Group{}, nil
	}
	s := service(t, fake)
	for _, header := range []string{`If-Match: "e-1"`, "If-Match: e-1", "If-Match: *"} {
		if got := s.do(t, "PUT", "/v1/groups/web", "{}", header); got.status != 200 || asked != strings.Trim(strings.TrimPrefix(header, "If-Match: "), `"`) {
			t.Errorf("%s: %d, asked for %q", header, got.status, asked)
		}
	}
}

func TestContentIsNotSentTwice(t *testing.T) {
	r := func(header ...string) *http.Request {
		return &http.Request{Header: http.Header{"If-None-Match": header}}
	}
	for header, want := range map[string]bool{
		`"ab"`: true, `W/"ab"`: true, `"x", "ab"`: true, "*": true, "": false, "ab": false, `"x"`: false, `"abc"`: false, "W/*": true,
	} {
		if got := isCurrent(r(header), "ab"); got != want {
			t.Errorf("If-None-Match: %s: %v", header, got)
		}
	}
	if !isCurrent(r(`"x"`, `"ab"`), "ab") || isCurrent(r(), "ab") || isCurrent(r(strings.Repeat(",", 10<<10)), "ab") {
		t.Error("several headers, or none")
	}
}
