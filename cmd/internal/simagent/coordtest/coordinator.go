// Package coordtest has a whole coordinator for tests that load one: on a network
// and a store of their choice, with operators inside the process.
package coordtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Coordinator is one that runs.
type Coordinator struct {
	// What an operator has.
	Commands musterv1.CommandsClient
	Configs  musterv1.ConfigsClient
	Rollouts musterv1.ConfigRolloutsClient

	t       testing.TB
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	running *errgroup.Group
}

// Start runs a coordinator that takes agents on ln. The token of its operators is
// in dir, which goes with the store from one coordinator to the next. Stop must be
// called.
func Start(t testing.TB, s store.Store, dir string, ln net.Listener, cfg coordinator.Config) *Coordinator {
	t.Helper()
	token := filepath.Join(dir, "admin.token")
	if err := coordinator.EnsureAdminToken(t.Context(), s, token); err != nil {
		t.Fatal(err)
	}
	inside, err := coordinator.New(t.Context(), s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := bus.NewMux()
	inside.Register(mux)
	router := bus.NewRouter(bus.Config{Log: cfg.Log}, mux)
	operators := bufconn.Listen(1 << 20)
	c := &Coordinator{t: t, conn: operator(t, operators, token)}
	c.Commands = musterv1.NewCommandsClient(c.conn)
	c.Configs, c.Rollouts = musterv1.NewConfigsClient(c.conn), musterv1.NewConfigRolloutsClient(c.conn)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.cancel = cancel
	c.running, ctx = errgroup.WithContext(ctx)
	c.running.Go(func() error { return router.Serve(ctx, ln, bus.Null()) })
	c.running.Go(func() error { return inside.Run(ctx) })
	c.running.Go(func() error { return inside.ServeGRPC(ctx, operators) })
	return c
}

// Stop ends it, and returns when everything has ended. The store stays open.
func (c *Coordinator) Stop() {
	c.t.Helper()
	c.conn.Close()
	c.cancel()
	if err := c.running.Wait(); err != nil {
		c.t.Error(err)
	}
}

// operator connects as one that has the token.
func operator(t testing.TB, ln *bufconn.Listener, tokenFile string) *grpc.ClientConn {
	t.Helper()
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	bearer := "Bearer " + strings.TrimSpace(string(token))
	conn, err := grpc.NewClient("passthrough:///coordinator", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", bearer), method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Submit gives a command to all agents, and returns its id.
func (c *Coordinator) Submit(cmd *musterv1.Command) string {
	c.t.Helper()
	cmd.Type, cmd.Input, cmd.Target = "exec", []byte(`{"argv":["true"]}`), &musterv1.TargetSelector{All: true}
	cmd, err := c.Commands.CreateCommand(c.t.Context(), &musterv1.CreateCommandRequest{Command: cmd})
	if err != nil {
		c.t.Fatal(err)
	}
	return cmd.Id
}

// Command is how a command is now.
func (c *Coordinator) Command(id string) *musterv1.Command {
	c.t.Helper()
	cmd, err := c.Commands.GetCommand(c.t.Context(), &musterv1.GetCommandRequest{Id: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return cmd
}
