package northbound

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// working is a coordinator that answers everything.
func working() *coordinator {
	fake := &coordinator{}
	fake.agents.list = func(context.Context, *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
		return &musterv1.ListAgentsResponse{}, nil
	}
	fake.agents.get = func(_ context.Context, r *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
		return &musterv1.Agent{Id: r.GetId()}, nil
	}
	fake.commands.create = func(_ context.Context, r *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		made := proto.CloneOf(r.GetCommand())
		made.Id, made.State = "01J", musterv1.Command_OPEN
		return made, nil
	}
	fake.commands.get = func(_ context.Context, r *musterv1.GetCommandRequest) (*musterv1.Command, error) {
		return &musterv1.Command{Id: r.GetId()}, nil
	}
	fake.commands.list = func(context.Context, *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error) {
		return &musterv1.ListCommandsResponse{}, nil
	}
	fake.commands.listTargets = func(context.Context, *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
		return &musterv1.ListTargetsResponse{}, nil
	}
	fake.commands.getTarget = func(_ context.Context, r *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		return &musterv1.Target{CommandId: r.GetCommandId(), AgentId: r.GetAgentId()}, nil
	}
	fake.commands.readOutput = func(*musterv1.ReadOutputRequest, grpc.ServerStreamingServer[musterv1.OutputChunk]) error { return nil }
	fake.agents.maintain = func(_ context.Context, r *musterv1.SetMaintenanceRequest) (*musterv1.Agent, error) {
		return &musterv1.Agent{Id: r.GetId(), Maintenance: r.GetMaintenance()}, nil
	}
	fake.commands.preview = func(context.Context, *musterv1.PreviewCommandRequest) (*musterv1.PreviewCommandResponse, error) {
		return &musterv1.PreviewCommandResponse{}, nil
	}
	fake.commands.control = func(_ string, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
		return &musterv1.Command{Id: r.GetId(), StateReason: r.GetReason()}, nil
	}
	fake.keys.list = func(*musterv1.ListKeysRequest) (*musterv1.ListKeysResponse, error) {
		return &musterv1.ListKeysResponse{}, nil
	}
	fake.keys.get = func(r *musterv1.GetKeyRequest) (*musterv1.Key, error) { return &musterv1.Key{Id: r.GetId()}, nil }
	fake.keys.approve = func(r *musterv1.ApproveKeyRequest) (*musterv1.Key, error) {
		return &musterv1.Key{Id: r.GetId(), State: musterv1.Key_APPROVED, AgentId: r.GetAgentId()}, nil
	}
	fake.keys.revoke = func(r *musterv1.RevokeKeyRequest) (*musterv1.Key, error) {
		return &musterv1.Key{Id: r.GetId(), State: musterv1.Key_REVOKED}, nil
	}
	fake.events.watch = func(_ *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
		if err := s.SendHeader(nil); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
	fake.work()
	return fake
}

var plainRoutes = []string{
	"/healthz", "/readyz", "/v1/agents", "/v1/agents/a", "/v1/agents/a/configs", "/v1/commands", "/v1/commands/c", "/v1/commands/c/targets",
	"/v1/commands/c/targets/a", "/v1/commands/c/targets/a/output", "/v1/keys", "/v1/keys/k",
	"/v1/groups", "/v1/groups/g", "/v1/groups/g/agents", "/v1/configs", "/v1/configs/c", "/v1/configs/c/versions", "/v1/configs/c/versions/1",
	"/v1/configs/c/versions/1/content", "/v1/configs/c/status", "/v1/configs/c/rollouts", "/v1/rollouts", "/v1/rollouts/r", "/v1/rollouts/r/targets",
}

// allowed are the methods of those plain routes that have more than GET.
var allowed = map[string]string{
	"/v1/agents/a": "OPTIONS, DELETE, GET, HEAD", "/v1/commands": "OPTIONS, GET, HEAD, POST",
	"/v1/groups/g": "OPTIONS, DELETE, GET, HEAD, PUT", "/v1/configs/c": "OPTIONS, DELETE, GET, HEAD, PUT",
	"/v1/configs/c/versions": "OPTIONS, GET, HEAD, POST", "/v1/configs/c/rollouts": "OPTIONS, GET, HEAD, POST",
}

// actions are the routes that have one method and no GET.
var actions = map[string]string{
	"/v1/commands/c/cancel": "POST", "/v1/commands/c/pause": "POST", "/v1/commands/c/resume": "POST", "/v1/commands/preview": "POST",
	"/v1/agents/a/maintenance": "PUT", "/v1/keys/k/approve": "POST", "/v1/keys/k/revoke": "POST",
	"/v1/groups/preview": "POST", "/v1/configs/preview": "POST",
	"/v1/rollouts/r/pause": "POST", "/v1/rollouts/r/resume": "POST", "/v1/rollouts/r/abort": "POST",
}

func TestRequestsBecomeCalls(t *testing.T) {
	fake := working()
	var token []string
	var called any
	fake.agents.list = func(ctx context.Context, r *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		token, called = md.Get("authorization"), r
		return &musterv1.ListAgentsResponse{Agents: []*musterv1.Agent{{Id: "web-1", Status: musterv1.Agent_ONLINE}}, NextPageToken: "next"}, nil
	}
	fake.commands.listTargets = func(_ context.Context, r *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
		called = r
		return &musterv1.ListTargetsResponse{}, nil
	}
	fake.commands.create = func(_ context.Context, r *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		called = r
		return &musterv1.Command{Id: "01J", State: musterv1.Command_OPEN, Input: r.GetCommand().GetInput()}, nil
	}
	s := service(t, fake)

	got := s.do(t, "GET", "/v1/agents?page_size=7&page_token=a%2Bb", "", "Authorization: bearer  s3cret~+/=")
	if got.status != 200 || string(got.body) != `{"agents":[{"id":"web-1","status":"ONLINE"}],"next_page_token":"next"}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if want := (&musterv1.ListAgentsRequest{PageSize: 7, PageToken: "a+b"}); !proto.Equal(called.(proto.Message), want) {
		t.Errorf("called with %v", called)
	}
	if !slices.Equal(token, []string{"Bearer s3cret~+/="}) {
		t.Errorf("token %q", token)
	}
	s.do(t, "GET", "/v1/commands/c/targets?page_size=1000000000", "")
	if want := (&musterv1.ListTargetsRequest{CommandId: "c", PageSize: 1000}); !proto.Equal(called.(proto.Message), want) {
		t.Errorf("called with %v", called)
	}
	got = s.do(t, "POST", "/v1/commands", `{"input":9007199254740993}`)
	if got.status != 202 || got.header.Get("Location") != "/v1/commands/01J" || string(got.body) != `{"id":"01J","input":9007199254740993,"state":"OPEN"}` {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
}

func TestC099IdempotencyKeyIsHandedOn(t *testing.T) {
	fake := working()
	var key string
	fake.commands.create = func(_ context.Context, r *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		key = r.GetIdempotencyKey()
		return &musterv1.Command{Id: "01J"}, nil
	}
	n := serve(t, fake)
	ask := func(headers string) *reply {
		c := n.dial(t)
		c.send(t, postHead+headers+"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		return c.answer(t, "POST")
	}
	for header, want := range map[string]string{"": "", "Idempotency-Key: a b~1\r\n": "a b~1"} {
		if got := ask(header); got.status != 202 || key != want {
			t.Errorf("%q: %d with key %q", header, got.status, key)
		}
	}
	key = "not called"
	for _, value := range []string{"", strings.Repeat("k", 10<<10), "a\tb", "\xc3\xa9", "a\r\nIdempotency-Key: a"} {
		ask("Idempotency-Key: "+value+"\r\n").want(t, 400, "INVALID_IDEMPOTENCY_KEY")
	}
	if key != "not called" {
		t.Errorf("called with %q", key)
	}
}

func TestWithoutTokenThereIsNoCall(t *testing.T) {
	fake := &coordinator{} // a call would be 500
	s := service(t, fake)
	for _, header := range []string{"", "Bearer", "Bearer ", "Basic YTpi", "secret", "Bearer a b", "Bearer \x80"} {
		for _, path := range append(plainRoutes[2:], "/v1/events") {
			got := s.do(t, "GET", path, "", "Authorization: "+header)
			got.want(t, 401, "UNAUTHENTICATED")
			if got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: no WWW-Authenticate", path)
			}
		}
		s.do(t, "POST", "/v1/commands", `{"`, "Authorization: "+header).want(t, 401, "UNAUTHENTICATED")
		for path, method := range actions {
			s.do(t, method, path, `{"`, "Authorization: "+header).want(t, 401, "UNAUTHENTICATED")
		}
	}
	if _, ok := bearerToken([]string{"Bearer a", "Bearer b"}); ok {
		t.Error("two headers are taken")
	}
}

func TestHealth(t *testing.T) {
	fake := working()
	s := service(t, fake)
	if got := s.do(t, "GET", "/readyz", "", "Authorization: "); got.status != 200 {
		t.Errorf("ready: %d %s", got.status, got.body)
	}
	fake.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	got := s.do(t, "GET", "/readyz", "")
	got.want(t, 503, "NOT_READY")
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if got := s.do(t, "GET", "/healthz", "", "Authorization: "); got.status != 200 || string(got.body) != `{"status":"OK"}` {
		t.Errorf("alive: %d %s", got.status, got.body)
	}
}

func TestC102Methods(t *testing.T) {
	n := serve(t, working())
	ask := func(method, path string) *reply {
		c := n.dial(t)
		c.send(t, method+" "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nX-HTTP-Method-Override: DELETE\r\nX-Method-Override: DELETE\r\n\r\n")
		return c.answer(t, method)
	}
	for _, path := range append(plainRoutes, "/v1/events") {
		allow := cmp.Or(allowed[path], "OPTIONS, GET, HEAD")
		head := ask("HEAD", path)
		if head.status != 200 || len(head.body) > 0 {
			t.Errorf("HEAD %s: %d, %d bytes", path, head.status, len(head.body))
		}
		if path != "/v1/events" {
			get := ask("GET", path)
			if get.status != 200 || get.header.Get("Content-Type") != head.header.Get("Content-Type") {
				t.Errorf("GET %s: %d %v, HEAD %v", path, get.status, get.header, head.header)
			}
		}
		if got := ask("OPTIONS", path); got.status != 204 || got.header.Get("Allow") != allow {
			t.Errorf("OPTIONS %s: %d, Allow %q", path, got.status, got.header.Get("Allow"))
		}
		for _, method := range []string{"PUT", "PATCH", "DELETE", "TRACE", "get", "PROPFIND", "FOO", "POST"} {
			if slices.Contains(strings.Split(allow, ", "), method) {
				continue
			}
			got := ask(method, path)
			got.want(t, 405, "METHOD_NOT_ALLOWED")
			if got.header.Get("Allow") != allow {
				t.Errorf("%s %s: Allow %q, want %q", method, path, got.header.Get("Allow"), allow)
			}
		}
	}
	for path, allowed := range actions {
		if got := ask("OPTIONS", path); got.status != 204 || got.header.Get("Allow") != "OPTIONS, "+allowed {
			t.Errorf("OPTIONS %s: %d, Allow %q", path, got.status, got.header.Get("Allow"))
		}
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "post", "FOO"} {
			// Of previews these are the methods of a resource with that name.
			if method == allowed || strings.HasSuffix(path, "/preview") && slices.Contains([]string{"GET", "HEAD", "PUT", "DELETE"}, method) {
				continue
			}
			got := ask(method, path)
			if got.status != 405 || got.header.Get("Allow") != "OPTIONS, "+allowed {
				t.Errorf("%s %s: %d, Allow %q", method, path, got.status, got.header.Get("Allow"))
			}
		}
	}
	// An error to HEAD has its status and no body.
	if got := ask("HEAD", "/v1/agents?x=1"); got.status != 400 || len(got.body) > 0 {
		t.Errorf("HEAD: %d %s", got.status, got.body)
	}
}

func TestC103SlashesAndForeignHosts(t *testing.T) {
	n := serve(t, working())
	var paths []string
	for _, path := range slices.Concat(plainRoutes, slices.Collect(maps.Keys(actions)), []string{"/v1/events"}) {
		paths = append(paths, path+"/", path+"//", strings.Replace(path, "/v1", "/v1/", 1)+"/", "/"+path)
	}
	paths = append(paths, "/", "//evil.example/..", "/%5cevil.example", "//evil.example%2f..", "/./v1/agents", "/v1/./agents", "/v1/agents//x",
		"/v1/agents/a/b", "/v1/commands//targets", "/v1", "/v1/", "/V1/agents", "/v1/agents/%61/", "/v1//agents", "/v1/commands/c/targets/a/output/x")
	for _, path := range paths {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			c := n.dial(t)
			c.send(t, method+" "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Length: 0\r\n\r\n")
			got := c.answer(t, method)
			got.want(t, 404, "NOT_FOUND")
			if got.header.Get("Location") != "" {
				t.Errorf("%s %s: Location %q", method, path, got.header.Get("Location"))
			}
		}
	}
}

func TestC104EncodedIDs(t *testing.T) {
	fake := working()
	var asked string
	fake.agents.get = func(_ context.Context, r *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
		asked = r.GetId()
		return &musterv1.Agent{Id: r.GetId()}, nil
	}
	var target [2]string
	fake.commands.getTarget = func(_ context.Context, r *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		target = [2]string{r.GetCommandId(), r.GetAgentId()}
		return &musterv1.Target{}, nil
	}
	n := serve(t, fake)
	ask := func(path string) *reply {
		c := n.dial(t)
		c.send(t, "GET "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
		return c.answer(t, "GET")
	}
	for path, want := range map[string]string{
		"web-1": "web-1", "a%2Fb": "a/b", "a%2fb": "a/b", "a%252Fb": "a%2Fb", "%2e%2e": "..", "..": "..", "%2E": ".", "%00": "\x00",
		"a%20b": "a b", "a+b": "a+b", "a%2Bb": "a+b", "%61": "a", "%C3%A9": "é", "\xc3\xa9": "é", "%c3%a9": "é", "a%25": "a%", "a%3Fb": "a?b", "a%23": "a#",
		"%2F%252F": "/%2F", "a:b": "a:b", "a%3Ab": "a:b", "a;b=c": "a;b=c", "%5C": "\\", "~%7E": "~~",
	} {
		asked = ""
		if got := ask("/v1/agents/" + path); got.status != 200 || asked != want {
			t.Errorf("%s: %d, asked for %q, want %q", path, got.status, asked, want)
		}
		if got := ask("/v1/commands/" + path + "/targets/" + path); got.status != 200 || target != [2]string{want, want} {
			t.Errorf("%s: %d, asked for %q, want %q", path, got.status, target, want)
		}
	}
	for _, path := range []string{"%FF", "\xff", "%C3", "a%2F%FF"} {
		ask("/v1/agents/"+path).want(t, 400, "MALFORMED_PATH")
	}
	for _, path := range []string{"%", "%2", "%zz"} {
		if got := ask("/v1/agents/" + path); got.status != 400 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		id := rapid.StringN(1, 40, math.MaxInt).Draw(rt, "id")
		if got := n.do(t, "GET", "/v1/agents/"+url.PathEscape(id), ""); got.status != 200 || asked != id {
			rt.Fatalf("%q: %d, asked for %q", id, got.status, asked)
		}
	})
}
