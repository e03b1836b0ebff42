package northbound

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// coordinator is a fake of all services; a nil func is Unimplemented.
type coordinator struct {
	agents   fakeAgents
	commands fakeCommands
	events   fakeEvents
	keys     fakeKeys
	groups   fakeGroups
	configs  fakeConfigs
	rollouts fakeRollouts
	health   *health.Server
}

type fakeAgents struct {
	musterv1.UnimplementedAgentsServer
	list     func(context.Context, *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error)
	get      func(context.Context, *musterv1.GetAgentRequest) (*musterv1.Agent, error)
	maintain func(context.Context, *musterv1.SetMaintenanceRequest) (*musterv1.Agent, error)
	forget   func(*musterv1.DeleteAgentRequest) (*musterv1.DeleteAgentResponse, error)
}

func (f *fakeAgents) DeleteAgent(_ context.Context, r *musterv1.DeleteAgentRequest) (*musterv1.DeleteAgentResponse, error) {
	return told(f.forget, r)
}

func (f *fakeAgents) ListAgents(ctx context.Context, r *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
	if f.list == nil {
		return f.UnimplementedAgentsServer.ListAgents(ctx, r)
	}
	return f.list(ctx, r)
}

func (f *fakeAgents) GetAgent(ctx context.Context, r *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
	if f.get == nil {
		return f.UnimplementedAgentsServer.GetAgent(ctx, r)
	}
	return f.get(ctx, r)
}

func (f *fakeAgents) SetMaintenance(ctx context.Context, r *musterv1.SetMaintenanceRequest) (*musterv1.Agent, error) {
	if f.maintain == nil {
		return f.UnimplementedAgentsServer.SetMaintenance(ctx, r)
	}
	return f.maintain(ctx, r)
}

type fakeCommands struct {
	musterv1.UnimplementedCommandsServer
	create      func(context.Context, *musterv1.CreateCommandRequest) (*musterv1.Command, error)
	preview     func(context.Context, *musterv1.PreviewCommandRequest) (*musterv1.PreviewCommandResponse, error)
	control     func(word string, r *musterv1.ControlCommandRequest) (*musterv1.Command, error)
	get         func(context.Context, *musterv1.GetCommandRequest) (*musterv1.Command, error)
	list        func(context.Context, *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error)
	listTargets func(context.Context, *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error)
	getTarget   func(context.Context, *musterv1.GetTargetRequest) (*musterv1.Target, error)
	readOutput  func(*musterv1.ReadOutputRequest, grpc.ServerStreamingServer[musterv1.OutputChunk]) error
}

func (f *fakeCommands) CreateCommand(ctx context.Context, r *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
	if f.create == nil {
		return f.UnimplementedCommandsServer.CreateCommand(ctx, r)
	}
	return f.create(ctx, r)
}

func (f *fakeCommands) PreviewCommand(ctx context.Context, r *musterv1.PreviewCommandRequest) (*musterv1.PreviewCommandResponse, error) {
	if f.preview == nil {
		return f.UnimplementedCommandsServer.PreviewCommand(ctx, r)
	}
	return f.preview(ctx, r)
}

func (f *fakeCommands) CancelCommand(ctx context.Context, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	if f.control == nil {
		return f.UnimplementedCommandsServer.CancelCommand(ctx, r)
	}
	return f.control("cancel", r)
}

func (f *fakeCommands) PauseCommand(ctx context.Context, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	if f.control == nil {
		return f.UnimplementedCommandsServer.PauseCommand(ctx, r)
	}
	return f.control("pause", r)
}

func (f *fakeCommands) ResumeCommand(ctx context.Context, r *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	if f.control == nil {
		return f.UnimplementedCommandsServer.ResumeCommand(ctx, r)
	}
	return f.control("resume", r)
}

func (f *fakeCommands) GetCommand(ctx context.Context, r *musterv1.GetCommandRequest) (*musterv1.Command, error) {
	if f.get == nil {
		return f.UnimplementedCommandsServer.GetCommand(ctx, r)
	}
	return f.get(ctx, r)
}

func (f *fakeCommands) ListCommands(ctx context.Context, r *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error) {
	if f.list == nil {
		return f.UnimplementedCommandsServer.ListCommands(ctx, r)
	}
	return f.list(ctx, r)
}

func (f *fakeCommands) ListTargets(ctx context.Context, r *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
	if f.listTargets == nil {
		return f.UnimplementedCommandsServer.ListTargets(ctx, r)
	}
	return f.listTargets(ctx, r)
}

func (f *fakeCommands) GetTarget(ctx context.Context, r *musterv1.GetTargetRequest) (*musterv1.Target, error) {
	if f.getTarget == nil {
		return f.UnimplementedCommandsServer.GetTarget(ctx, r)
	}
	return f.getTarget(ctx, r)
}

func (f *fakeCommands) ReadOutput(r *musterv1.ReadOutputRequest, s grpc.ServerStreamingServer[musterv1.OutputChunk]) error {
	if f.readOutput == nil {
		return f.UnimplementedCommandsServer.ReadOutput(r, s)
	}
	return f.readOutput(r, s)
}

type fakeEvents struct {
	musterv1.UnimplementedEventsServer
	watch func(*musterv1.WatchEventsRequest, grpc.ServerStreamingServer[musterv1.Event]) error
}

func (f *fakeEvents) WatchEvents(r *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
	if f.watch == nil {
		return f.UnimplementedEventsServer.WatchEvents(r, s)
	}
	return f.watch(r, s)
}

type fakeKeys struct {
	musterv1.UnimplementedKeysServer
	list    func(*musterv1.ListKeysRequest) (*musterv1.ListKeysResponse, error)
	get     func(*musterv1.GetKeyRequest) (*musterv1.Key, error)
	approve func(*musterv1.ApproveKeyRequest) (*musterv1.Key, error)
	revoke  func(*musterv1.RevokeKeyRequest) (*musterv1.Key, error)
}

func (f *fakeKeys) ListKeys(ctx context.Context, r *musterv1.ListKeysRequest) (*musterv1.ListKeysResponse, error) {
	if f.list == nil {
		return f.UnimplementedKeysServer.ListKeys(ctx, r)
	}
	return f.list(r)
}

func (f *fakeKeys) GetKey(ctx context.Context, r *musterv1.GetKeyRequest) (*musterv1.Key, error) {
	if f.get == nil {
		return f.UnimplementedKeysServer.GetKey(ctx, r)
	}
	return f.get(r)
}

func (f *fakeKeys) ApproveKey(ctx context.Context, r *musterv1.ApproveKeyRequest) (*musterv1.Key, error) {
	if f.approve == nil {
		return f.UnimplementedKeysServer.ApproveKey(ctx, r)
	}
	return f.approve(r)
}

func (f *fakeKeys) RevokeKey(ctx context.Context, r *musterv1.RevokeKeyRequest) (*musterv1.Key, error) {
	if f.revoke == nil {
		return f.UnimplementedKeysServer.RevokeKey(ctx, r)
	}
	return f.revoke(r)
}

// service is a Server whose coordinator is the fake. Its log is the test's
// unless config has one.
func service(t *testing.T, fake *coordinator, config ...Config) *Server {
	t.Helper()
	ln := bufconn.Listen(64 << 10)
	gs := grpc.NewServer(grpc.MaxRecvMsgSize(8 << 20))
	musterv1.RegisterAgentsServer(gs, &fake.agents)
	musterv1.RegisterCommandsServer(gs, &fake.commands)
	musterv1.RegisterEventsServer(gs, &fake.events)
	musterv1.RegisterKeysServer(gs, &fake.keys)
	musterv1.RegisterGroupsServer(gs, &fake.groups)
	musterv1.RegisterConfigsServer(gs, &fake.configs)
	musterv1.RegisterConfigRolloutsServer(gs, &fake.rollouts)
	if fake.health == nil {
		fake.health = health.NewServer()
	}
	healthv1.RegisterHealthServer(gs, fake.health)
	ended := make(chan error, 1)
	go func() { ended <- gs.Serve(ln) }()
	conn, err := grpc.NewClient("passthrough:coordinator",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		gs.Stop()
		<-ended
	})
	with := Config{}
	if len(config) > 0 {
		with = config[0]
	}
	if with.Log == nil {
		with.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return New(conn, with)
}

// network is a Server that serves on an in-memory network, so that it can live
// in a synctest bubble.
type network struct {
	*Server
	ln    *bufconn.Listener
	stop  func()
	ended chan error
}

func serve(t *testing.T, fake *coordinator, config ...Config) *network {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := &network{Server: service(t, fake, config...), ln: bufconn.Listen(4 << 10), stop: cancel, ended: make(chan error, 1)}
	go func() {
		n.ended <- n.Serve(ctx, n.ln)
		close(n.ended)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-n.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return n
}

// dial is a raw connection of a client.
func (n *network) dial(t *testing.T) *client {
	t.Helper()
	conn, err := n.ln.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{Conn: conn, in: bufio.NewReader(conn)}
}

type client struct {
	net.Conn
	in *bufio.Reader
}

func (c *client) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// answer reads one whole answer to a request with the method.
func (c *client) answer(t *testing.T, method string) *reply {
	t.Helper()
	res, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("answer: %v", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("answer: %v", err)
	}
	return &reply{res.StatusCode, res.Header, body, res.Close}
}

// closed waits until the server ends the connection.
func (c *client) closed(t *testing.T) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c.in); err != nil || n > 0 {
		t.Fatalf("after the answer: %d bytes, %v; want the end", n, err)
	}
}

// reply is an answer as a test looks at it.
type reply struct {
	status int
	header http.Header
	body   []byte
	close  bool
}

func (r *reply) problem(t *testing.T) *problem {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("%d with Content-Type %q: %s", r.status, got, r.body)
	}
	p := &problem{}
	if err := json.Unmarshal(r.body, p); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	if p.Status != r.status || p.Code == "" || p.Title == "" {
		t.Fatalf("%d with the problem %s", r.status, r.body)
	}
	return p
}

// do asks the handler itself, with a token. headers are "Key: value".
func (s *Server) do(t *testing.T, method, target, body string, headers ...string) *reply {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, target, content)
	r.Header.Set("Authorization", "Bearer secret")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		r.Header.Del(key)
		if value != "" {
			r.Header.Set(key, value)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return &reply{w.Code, w.Header(), w.Body.Bytes(), false}
}

func (r *reply) want(t *testing.T, status int, code string) *problem {
	t.Helper()
	p := r.problem(t)
	if r.status != status || p.Code != code {
		t.Fatalf("got %d %s (%s), want %d %s", r.status, p.Code, p.Detail, status, code)
	}
	return p
}

// eventually polls for what happens on goroutines that a test cannot join.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
