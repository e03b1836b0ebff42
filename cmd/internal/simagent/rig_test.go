package simagent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rig is a coordinator on an in-memory network and an in-memory store, inside a
// synctest bubble. It may be stopped, and started again on the same store.
type rig struct {
	t     *testing.T
	store store.Store
	cfg   coordinator.Config
	token string // file
	net   atomic.Pointer[bustest.Net]
	cmds  musterv1.CommandsClient
	stop  func()
}

func rigTest(t *testing.T, cfg coordinator.Config, body func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: store.NewMem(coordinator.Spaces...), cfg: cfg, token: filepath.Join(t.TempDir(), "token")}
		r.cfg.Log = warnings(t)
		t.Cleanup(func() { r.stop(); r.store.Close() })
		r.start()
		body(t, r)
	})
}

func warnings(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (r *rig) start() {
	r.t.Helper()
	if err := coordinator.EnsureAdminToken(r.t.Context(), r.store, r.token); err != nil {
		r.t.Fatal(err)
	}
	c, err := coordinator.New(r.t.Context(), r.store, r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	mux := bus.NewMux()
	c.Register(mux)
	router := bus.NewRouter(bus.Config{Log: r.cfg.Log}, mux)
	agents, operators := bustest.NewNet(), bufconn.Listen(1<<20)
	conn := r.operator(operators)

	ctx, cancel := context.WithCancel(r.t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return router.Serve(ctx, agents, bus.Null()) })
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return c.ServeGRPC(ctx, operators) })
	r.net.Store(agents)
	r.cmds = musterv1.NewCommandsClient(conn)
	r.stop = func() {
		r.t.Helper()
		conn.Close()
		cancel()
		if err := g.Wait(); err != nil {
			r.t.Error(err)
		}
	}
}

// operator connects as one that has the token.
func (r *rig) operator(ln *bufconn.Listener) *grpc.ClientConn {
	r.t.Helper()
	token, err := os.ReadFile(r.token)
	if err != nil {
		r.t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///coordinator", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// dial reaches the coordinator that runs now.
func (r *rig) dial(ctx context.Context, _ int) (net.Conn, error) {
	return r.net.Load().Dial(ctx, "mem://")
}

// fleet runs agents until stop is called, or the test ends.
func (r *rig) fleet(cfg Config) (f *Fleet, stop func()) {
	r.t.Helper()
	cfg.Dial, cfg.Log = r.dial, warnings(r.t)
	f, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		f.Run(ctx)
		close(ended)
	}()
	stop = func() { cancel(); <-ended }
	r.t.Cleanup(stop)
	return f, stop
}

// waitRegistered returns when all agents of f are registered.
func waitRegistered(t *testing.T, f *Fleet) {
	t.Helper()
	eventually(t, time.Minute, "all are registered", func() bool { return f.Report().Registered == int64(f.Report().Agents) })
}

// eventually polls in the bubble's time.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func (r *rig) submit(cmd *musterv1.Command) string {
	r.t.Helper()
	cmd.Type, cmd.Input, cmd.Target = "exec", []byte(`{"argv":["true"]}`), &musterv1.TargetSelector{All: true}
	cmd, err := r.cmds.CreateCommand(r.t.Context(), &musterv1.CreateCommandRequest{Command: cmd})
	if err != nil {
		r.t.Fatal(err)
	}
	return cmd.Id
}

func (r *rig) command(id string) *musterv1.Command {
	r.t.Helper()
	cmd, err := r.cmds.GetCommand(r.t.Context(), &musterv1.GetCommandRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return cmd
}

// waitState returns the command when it is in the state.
func (r *rig) waitState(id string, want musterv1.Command_State, within time.Duration) (cmd *musterv1.Command) {
	r.t.Helper()
	eventually(r.t, within, "command is "+want.String(), func() bool {
		cmd = r.command(id)
		return cmd.State == want
	})
	return cmd
}
