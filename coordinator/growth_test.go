package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC112FileReachesAPlateau(t *testing.T) {
	t.Parallel()
	showPlateau(t, Config{KeepCommands: 200}, 5_000)
}

func TestC112BytesReachAPlateau(t *testing.T) {
	t.Parallel()
	showPlateau(t, Config{KeepBytes: 1 << 20}, 5_000)
}

// showPlateau runs commands on a coordinator that keeps few of them, on the real
// engine. The file must not grow with the last two fifths of them, and no
// request may wait for the clean-up.
func showPlateau(t *testing.T, cfg Config, commands int) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := boltstore.Open(path, boltstore.Options{}, Spaces...)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c, err := New(t.Context(), db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := runOn(t, c, bustest.NewNet(), func(p *bus.Peer, cmd *musterv1.Command) error {
		p.Send(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: make([]byte, 500)})
		return p.Send(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 500}})
	})
	defer stop()
	machine := slowestCommit(t)

	start := time.Now()
	var next atomic.Int64
	var mu sync.Mutex
	var slowest time.Duration
	sizes := map[int]int64{}
	var writers sync.WaitGroup
	for range 32 {
		writers.Go(func() {
			for n := int(next.Add(1)); n <= commands; n = int(next.Add(1)) {
				took, err := runOne(t.Context(), c)
				if err != nil {
					t.Errorf("command %d: %v", n, err)
					return
				}
				mu.Lock()
				slowest = max(slowest, took)
				if n%(commands/10) == 0 {
					info, err := os.Stat(path)
					if err != nil {
						t.Error(err)
						return
					}
					sizes[n*10/commands] = info.Size()
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	noise := machine()
	t.Logf("%d commands in %v, the slowest took %v, a commit elsewhere %v, sizes %v", commands, time.Since(start), slowest, noise, sizes)
	if slowest > max(time.Second, 4*noise) {
		t.Errorf("a command waited %v", slowest)
	}
	if was, is := sizes[6], sizes[10]; float64(is) > 1.2*float64(was) {
		t.Errorf("the last two fifths took the file from %d to %d bytes", was, is)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		page, err := (&commandService{c: c}).ListCommands(t.Context(), &musterv1.ListCommandsRequest{PageSize: 1000})
		used, uerr := db.Used()
		if err := errors.Join(err, uerr); err != nil {
			t.Fatal(err)
		}
		if n := len(page.Commands); n > 0 && (n == cfg.KeepCommands || cfg.KeepBytes > 0 && used <= cfg.KeepBytes) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d commands are left in %d bytes", n, used)
		}
	}
	stop()
	db.Close()
	if r, err := boltstore.Check(t.Context(), path, CheckRow); err != nil || !r.Sound() {
		t.Errorf("check: %v, %+v", err, r)
	}
}

// runOne submits a command and waits for its end; it returns how long the first took.
func runOne(ctx context.Context, c *Coordinator) (took time.Duration, err error) {
	start := time.Now()
	cmd, err := c.submit(ctx, to("a"), "")
	if err != nil {
		return 0, err
	}
	took = time.Since(start)
	if _, ended, open := c.ledger.command(cmd.Id); open {
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			return 0, fmt.Errorf("%s has not ended", cmd.Id)
		}
	}
	return took, nil
}

// slowestCommit writes a row now and then to another store on the same disk,
// until it is asked for the longest time that took: what the machine does to
// others it does to us.
func slowestCommit(t *testing.T) func() time.Duration {
	t.Helper()
	db, err := boltstore.Open(filepath.Join(t.TempDir(), "other"), boltstore.Options{}, Spaces...)
	if err != nil {
		t.Fatal(err)
	}
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		defer db.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var slowest time.Duration
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-stop:
				longest <- slowest
				return
			}
			start := time.Now()
			op := store.Op{Space: spaceFleet, Key: fmt.Appendf(nil, "row/%d", n%10)}
			if _, err := db.Commit(context.WithoutCancel(t.Context()), store.Batch{Ops: []store.Op{op}}); err != nil {
				t.Error(err)
			}
			slowest = max(slowest, time.Since(start))
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

// runOn runs a coordinator in real time, with one agent that does what play says
// with each command.
func runOn(t *testing.T, c *Coordinator, net *bustest.Net, play func(*bus.Peer, *musterv1.Command) error) (stop func()) {
	t.Helper()
	mux := bus.NewMux()
	c.Register(mux)
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	quiet := slog.New(slog.DiscardHandler)
	g.Go(func() error { return bus.NewRouter(bus.Config{Log: quiet}, mux).Serve(ctx, net, bus.Null()) })
	g.Go(func() error { return c.Run(ctx) })
	agent := bus.NewMux()
	registered := make(chan struct{})
	agent.Up = func(p *bus.Peer) {
		p.Send(&musterv1.Register{AgentId: "a", RunId: "r", Journal: &musterv1.JournalPosition{Epoch: "e", Seq: 1}})
	}
	bus.Handle(agent, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Registered) error {
		p.Promote()
		close(registered)
		return nil
	})
	bus.Handle(agent, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Command) error { return play(p, m) })
	bus.Handle(agent, func(*bus.Peer, *musterv1.Envelope, *musterv1.TargetAck) error { return nil })
	g.Go(func() error {
		bus.NewDealer(bus.Config{Log: quiet}, agent, []string{"mem://"}, bus.Null(), net.Dial).Run(ctx)
		return nil
	})
	select {
	case <-registered:
	case <-time.After(10 * time.Second):
		t.Fatal("the agent cannot register")
	}
	return sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
