package simagent

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/cmd/internal/simagent/coordtest"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rig is a coordinator on an in-memory network and an in-memory store, inside a
// synctest bubble. It may be stopped, and started again on the same store.
type rig struct {
	*coordtest.Coordinator
	t     *testing.T
	store *witness
	cfg   coordinator.Config
	dir   string
	net   atomic.Pointer[bustest.Net]
}

// rigTest runs body in a bubble with a running coordinator.
func rigTest(t *testing.T, cfg coordinator.Config, body func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: newWitness(store.NewMem(coordinator.Spaces...)), cfg: cfg, dir: t.TempDir()}
		r.cfg.Log = warnings(t)
		r.start()
		t.Cleanup(func() { r.Stop(); r.store.Close() })
		body(t, r)
	})
}

func warnings(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (r *rig) start() {
	r.t.Helper()
	r.net.Store(bustest.NewNet())
	r.Coordinator = coordtest.Start(r.t, r.store, r.dir, r.net.Load(), r.cfg)
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

// waitState returns the command when it is in the state.
func (r *rig) waitState(id string, want musterv1.Command_State, within time.Duration) (cmd *musterv1.Command) {
	r.t.Helper()
	eventually(r.t, within, "command is "+want.String(), func() bool {
		cmd = r.Command(id)
		return cmd.State == want
	})
	return cmd
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
