package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func TestReadEvents(t *testing.T) {
	const stream = "retry: 1000\n\nid: e.1\nevent: agent\ndata: {\"a\":\ndata: 1}\n\n: keep-alive\n\nid:e.2\ndata:x\n\ndata: cut"
	var got []string
	err := readEvents(strings.NewReader(stream), func(id string, data []byte) error {
		got = append(got, id+"="+string(data))
		return nil
	})
	if want := []string{"e.1={\"a\":\n1}", "e.2=x"}; !slices.Equal(got, want) || !errors.Is(err, errStreamEnded) {
		t.Errorf("%q %v", got, err)
	}
}

// When the stream breaks it is opened again behind the last event; a refusal
// ends it.
func TestEventsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []string
		f := &fakeService{t: t}
		f.answers = map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/events": func(w http.ResponseWriter, r *http.Request) {
				after = append(after, r.URL.RawQuery+" "+r.Header.Get("Last-Event-ID"))
				switch len(after) {
				case 1:
					io.WriteString(w, "id: e.1\ndata: {\"kind\":\"agent\",\"agent\":{\"id\":\"a1\\u001b\",\"status\":\"ONLINE\"}}\n\n")
				case 2:
					io.WriteString(w, "id: f.1\ndata: {\"kind\":\"resync\"}\n\nid: f.2\ndata: {\"kind\":\"target\",\"target\":{\"command_id\":\"C1\",\"agent_id\":\"a1\",\"state\":\"FAILED\",\"reason\":\"why\"}}\n\n")
				default:
					refuse(w, 401, "UNAUTHENTICATED", "a valid bearer token is needed")
				}
			},
		}
		var out strings.Builder
		err := (&follower{client: f.client(), kinds: []string{"agent", "target"}, stdout: &out, stderr: io.Discard}).run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("%v", err)
		}
		if want := []string{"kinds=agent%2Ctarget ", "kinds=agent%2Ctarget e.1", "kinds=agent%2Ctarget f.2"}; !slices.Equal(after, want) {
			t.Errorf("asked %q, want %q", after, want)
		}
		for _, want := range []string{"a1· ONLINE", "read the state again", "C1 a1 FAILED: why"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in %q", want, out.String())
			}
		}
	})
}

func TestEventsEndWithCtrlC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakeService{t: t, answers: map[string]func(http.ResponseWriter, *http.Request){
			"GET /v1/events": func(http.ResponseWriter, *http.Request) { cancel() },
		}}
		if err := (&follower{client: f.client(), stdout: io.Discard, stderr: io.Discard}).run(ctx); err != nil {
			t.Error(err)
		}
	})
}
