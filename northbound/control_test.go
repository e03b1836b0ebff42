package northbound

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestControlTakesAReasonOrNothing(t *testing.T) {
	fake := working()
	var asked string
	fake.commands.control = func(word string, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
		asked = fmt.Sprintf("%s %s %q", word, r.GetId(), r.GetReason())
		return &musterv1.Command{Id: r.GetId(), State: musterv1.Command_PAUSED, StateReason: r.GetReason()}, nil
	}
	s := service(t, fake)
	for _, word := range []string{"cancel", "pause", "resume"} {
		for body, reason := range map[string]string{"": "", "{}": "", `{"reason":""}`: "", `{"reason":"too hot"}`: "too hot"} {
			got := s.do(t, "POST", "/v1/commands/01%2FJ/"+word, body)
			if want := fmt.Sprintf("%s 01/J %q", word, reason); got.status != 200 || asked != want {
				t.Errorf("%s with %q: %d, asked for %s", word, body, got.status, asked)
			}
			if reason != "" && string(got.body) != `{"id":"01/J","state":"PAUSED","state_reason":"too hot"}` {
				t.Errorf("%s: %s", word, got.body)
			}
		}
	}
	// An id that is a word of the routes is an id.
	if s.do(t, "POST", "/v1/commands/preview/cancel", ""); asked != `cancel preview ""` {
		t.Errorf("asked for %s", asked)
	}
}

func TestC097ControlWithoutABody(t *testing.T) {
	n := serve(t, working())
	for _, path := range []string{"/v1/commands/c/cancel", "/v1/commands/c/pause", "/v1/commands/c/resume", "/v1/keys/k/approve", "/v1/keys/k/revoke"} {
		ask := func(headers, body string) *reply {
			c := n.dial(t)
			c.send(t, "POST "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"+headers+"\r\n"+body)
			return c.answer(t, "POST")
		}
		for _, headers := range []string{
			"", "Content-Length: 0\r\n", "Content-Length: 0\r\nContent-Type: application/json\r\n",
			"Content-Length: 0\r\nContent-Type: application/x-www-form-urlencoded\r\n", // curl -d ''
		} {
			if got := ask(headers, ""); got.status != 200 || got.close {
				t.Errorf("%s with %q: %d %s", path, headers, got.status, got.body)
			}
		}
		if got := ask("Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n", "0\r\n\r\n"); got.status != 200 || got.close {
			t.Errorf("%s with an empty chunk: %d %s", path, got.status, got.body)
		}
		ask("Content-Length: 2\r\n", "{}").want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
		ask("Content-Length: 2\r\nContent-Type: text/plain\r\n", "{}").want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
		ask("Content-Length: 10737418240\r\nContent-Type: application/json\r\n", "").want(t, 413, "BODY_TOO_LARGE")
	}
	put := func(body string) *reply { return n.do(t, "PUT", "/v1/agents/a/maintenance", body) }
	put("").want(t, 400, "EMPTY_BODY")
	for _, body := range []string{"null", "[]", `"x"`, "true"} {
		put(body).want(t, 400, "NOT_AN_OBJECT")
	}
}

func TestC098BadBodiesDecideNothing(t *testing.T) {
	s := service(t, &coordinator{}) // a call would be 500
	for _, tc := range []struct {
		method, path, body string
		status             int
		code, field        string
	}{
		{"POST", "/v1/commands/c/cancel", `{"raeson":"x"}`, 422, "UNKNOWN_FIELD", "raeson"},
		{"POST", "/v1/commands/c/cancel", `{"reason":1}`, 422, "WRONG_TYPE", "reason"},
		{"POST", "/v1/commands/c/cancel", `{"reason":null}`, 422, "NULL", "reason"},
		{"POST", "/v1/commands/c/cancel", `{"id":"d"}`, 422, "IN_PATH", "id"},
		{"POST", "/v1/commands/c/pause", `{"reason":"a","reason":"b"}`, 422, "DUPLICATE_FIELD", "reason"},
		{"POST", "/v1/commands/c/resume", `{} {}`, 400, "TRAILING_DATA", ""},
		{"POST", "/v1/commands/c/resume", `[]`, 400, "NOT_AN_OBJECT", ""},
		{"POST", "/v1/commands/c/cancel", ` `, 400, "MALFORMED_JSON", ""},
		{"POST", "/v1/commands/preview", `{"type":"ping","id":"c"}`, 422, "SET_BY_SERVER", "id"},
		{"POST", "/v1/commands/preview", `{"command":{}}`, 422, "UNKNOWN_FIELD", "command"},
		{"POST", "/v1/commands/preview", `{"page_size":1}`, 422, "UNKNOWN_FIELD", "page_size"},
		{"PUT", "/v1/agents/a/maintenance", `{}`, 422, "MISSING_FIELD", "maintenance"},
		{"PUT", "/v1/agents/a/maintenance", `{"maintenance":"true"}`, 422, "WRONG_TYPE", "maintenance"},
		{"PUT", "/v1/agents/a/maintenance", `{"maintenance":1}`, 422, "WRONG_TYPE", "maintenance"},
		{"PUT", "/v1/agents/a/maintenance", `{"maintenance":true,"id":"b"}`, 422, "IN_PATH", "id"},
		{"PUT", "/v1/agents/a/maintenance", `{"maintenance":true,"maintenance":false}`, 422, "DUPLICATE_FIELD", "maintenance"},
		{"POST", "/v1/keys/k/approve", `{"agent":"web-1"}`, 422, "UNKNOWN_FIELD", "agent"},
		{"POST", "/v1/keys/k/approve", `{"agent_id":""}`, 422, "INVALID_VALUE", "agent_id"},
		{"POST", "/v1/keys/k/approve", `{"id":"j","agent_id":"web-1"}`, 422, "IN_PATH", "id"},
		{"POST", "/v1/keys/k/revoke", `{"agent_id":"web-1"}`, 422, "UNKNOWN_FIELD", "agent_id"},
		{"POST", "/v1/keys/k/revoke", `{"id":"k"}`, 422, "IN_PATH", "id"},
	} {
		p := s.do(t, tc.method, tc.path, tc.body).want(t, tc.status, tc.code)
		if tc.field == "" && len(p.Errors) > 0 || tc.field != "" && (len(p.Errors) != 1 || p.Errors[0].Field != tc.field) {
			t.Errorf("%s %s: errors %v, want one at %q", tc.path, tc.body, p.Errors, tc.field)
		}
	}
	for path, method := range actions {
		s.do(t, method, path+"?force=1", `{"maintenance":true}`).want(t, 400, "UNKNOWN_PARAMETER")
	}
}

func TestC041ControlSaysWhatHappened(t *testing.T) {
	fake := &coordinator{}
	s := service(t, fake)
	var err error
	fake.commands.control = func(_ string, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
		return &musterv1.Command{Id: r.GetId(), State: musterv1.Command_CANCELLED}, err
	}
	for range 2 { // twice is no mistake
		if got := s.do(t, "POST", "/v1/commands/c/cancel", ""); got.status != 200 || string(got.body) != `{"id":"c","state":"CANCELLED"}` {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	for _, word := range []string{"cancel", "pause", "resume"} {
		for _, tc := range []struct {
			err    error
			status int
			code   string
		}{
			{refused(codes.FailedPrecondition, "command c has ended", &errdetails.ErrorInfo{Reason: "COMMAND_ENDED"}), 409, "COMMAND_ENDED"},
			{refused(codes.FailedPrecondition, "command c is cancelled", &errdetails.ErrorInfo{Reason: "COMMAND_CANCELLED"}), 409, "COMMAND_CANCELLED"},
			{refused(codes.NotFound, "command c is not known", &errdetails.ErrorInfo{Reason: "NOT_FOUND"}), 404, "NOT_FOUND"},
			{refused(codes.InvalidArgument, "too long", violations("reason", "5000 bytes, at most 4096")), 422, "INVALID_ARGUMENT"},
			{refused(codes.Unavailable, "no disk", &errdetails.ErrorInfo{Reason: "STORE_UNAVAILABLE"}), 503, "STORE_UNAVAILABLE"},
		} {
			err = tc.err
			p := s.do(t, "POST", "/v1/commands/c/"+word, `{"reason":"x"}`).want(t, tc.status, tc.code)
			if tc.status == 409 && !strings.Contains(p.Detail, "command c ") {
				t.Errorf("%s: %q", word, p.Detail)
			}
		}
	}
}

func TestPreviewAnswersWhoWouldGetIt(t *testing.T) {
	fake := working()
	var asked *musterv1.PreviewCommandRequest
	var refusal error
	fake.commands.preview = func(_ context.Context, r *musterv1.PreviewCommandRequest) (*musterv1.PreviewCommandResponse, error) {
		asked = r
		return &musterv1.PreviewCommandResponse{Total: 2, Online: 1, Fleet: 9, Targets: []*musterv1.Target{{AgentId: "web-1", Reason: "OFFLINE"}}, NextPageToken: "n"}, refusal
	}
	fake.commands.create = func(context.Context, *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		t.Error("a preview created a command")
		return &musterv1.Command{}, nil
	}
	s := service(t, fake)
	got := s.do(t, "POST", "/v1/commands/preview?page_size=1&page_token=p", `{"type":"ping","input":{"n":9007199254740993},"target":{"where":"os == \"linux\""}}`)
	if want := `{"total":2,"online":1,"fleet":9,"targets":[{"agent_id":"web-1","reason":"OFFLINE"}],"next_page_token":"n"}`; got.status != 200 || string(got.body) != want {
		t.Errorf("got %d %s", got.status, got.body)
	}
	want := &musterv1.PreviewCommandRequest{PageSize: 1, PageToken: "p", Command: &musterv1.Command{
		Type: "ping", Input: []byte(`{"n":9007199254740993}`), Target: &musterv1.TargetSelector{Where: `os == "linux"`}}}
	if !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "GET", "/v1/commands/preview", ""); got.status != 200 || string(got.body) != `{"id":"preview"}` {
		t.Errorf("GET of the command with that id: %d %s", got.status, got.body)
	}
	s.do(t, "POST", "/v1/commands/preview", "").want(t, 400, "EMPTY_BODY")
	s.do(t, "POST", "/v1/commands/preview?page_size=0", `{}`).want(t, 400, "INVALID_PARAMETER")

	refusal = refused(codes.InvalidArgument, "bad", violations("target.where", "not a CEL expression"), &errdetails.ErrorInfo{Reason: "INVALID_FIELD"})
	if p := s.do(t, "POST", "/v1/commands/preview", `{}`).want(t, 422, "INVALID_FIELD"); p.Errors[0].Field != "target.where" {
		t.Errorf("%+v", p)
	}
	refusal = refused(codes.InvalidArgument, "bad", violations("page_token", "not a token of this list"))
	s.do(t, "POST", "/v1/commands/preview?page_token=x", `{}`).want(t, 400, "INVALID_ARGUMENT") // no fault of the body
}

func TestC099KeysAreOfOneRoute(t *testing.T) {
	fake := working()
	made := map[string]string{} // key → type
	fake.commands.create = func(_ context.Context, r *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		kind := r.GetCommand().GetType()
		if earlier, ok := made[r.GetIdempotencyKey()]; ok && earlier != kind {
			return nil, refused(codes.AlreadyExists, "the Idempotency-Key was used for another request", &errdetails.ErrorInfo{Reason: "IDEMPOTENCY_KEY_REUSED"})
		}
		made[r.GetIdempotencyKey()] = kind
		return &musterv1.Command{Id: "01J", Type: kind}, nil
	}
	s := service(t, fake)
	const key = "Idempotency-Key: k"
	s.do(t, "POST", "/v1/commands", `{"typ":"ping"}`, key).want(t, 422, "UNKNOWN_FIELD") // burns nothing
	// Where it promises nothing it changes nothing: those may be repeated as they are.
	for path, method := range actions {
		if got := s.do(t, method, path, `{"maintenance":true}`, key); path == "/v1/agents/a/maintenance" && got.status != 200 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if len(made) > 0 {
		t.Errorf("keys are burnt: %v", made)
	}
	for _, body := range []string{`{"type":"ping","name":"a"}`, `{"name":"a","type":"ping"}`} {
		if got := s.do(t, "POST", "/v1/commands", body, key); got.status != 202 || got.header.Get("Location") != "/v1/commands/01J" {
			t.Errorf("%s: %d", body, got.status)
		}
	}
	s.do(t, "POST", "/v1/commands", `{"type":"exec"}`, key).want(t, 409, "IDEMPOTENCY_KEY_REUSED")
}

func TestMaintenanceHoldsTheQueue(t *testing.T) {
	fake := working()
	held := map[string]bool{}
	fake.agents.maintain = func(_ context.Context, r *musterv1.SetMaintenanceRequest) (*musterv1.Agent, error) {
		if r.GetId() == "nobody" {
			return nil, refused(codes.NotFound, "agent \"nobody\" is not known")
		}
		held[r.GetId()] = r.GetMaintenance()
		return &musterv1.Agent{Id: r.GetId(), Maintenance: r.GetMaintenance()}, nil
	}
	fake.agents.get = func(_ context.Context, r *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
		return &musterv1.Agent{
			Id: r.GetId(), Maintenance: held[r.GetId()], Queue: &musterv1.AgentQueue{Waiting: 3, OldestCommandId: "01J", LastRefusal: "queue full"},
			Plugins: []*musterv1.Plugin{{Name: "backup", Version: "1.2", Contract: 1}, {Name: "bad", Error: "not executable"}},
		}, nil
	}
	s := service(t, fake)
	if got := s.do(t, "PUT", "/v1/agents/a%2Fb/maintenance", `{"maintenance":true}`); got.status != 200 || string(got.body) != `{"id":"a/b","maintenance":true}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	want := `{"id":"a/b","maintenance":true,"plugins":[{"name":"backup","version":"1.2","contract":1},{"name":"bad","error":"not executable"}],` +
		`"queue":{"waiting":3,"oldest_command_id":"01J","last_refusal":"queue full"}}`
	if got := s.do(t, "GET", "/v1/agents/a%2Fb", ""); string(got.body) != want {
		t.Errorf("got %s", got.body)
	}
	if got := s.do(t, "PUT", "/v1/agents/a%2Fb/maintenance", `{"maintenance":false}`); got.status != 200 || held["a/b"] {
		t.Errorf("got %d %s", got.status, got.body)
	}
	s.do(t, "PUT", "/v1/agents/nobody/maintenance", `{"maintenance":true}`).want(t, 404, "NOT_FOUND")
}
