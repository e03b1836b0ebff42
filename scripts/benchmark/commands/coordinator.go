package commands

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	"github.com/musterhq/muster/northbound"
)

// variant is `muster up` with what only a benchmark wants: a store in memory, and
// profiles.
type variant struct {
	data       string
	listen     string // for agents, HOST:PORT
	listenHTTP string
	settler    string // address where memory can be asked back (none)
	profile    string // file for a CPU profile (none)
	durable    bool   // the store is the file that `muster up` has
	curve      bool   // with the key in keyFile
}

// runVariant is the program of a variant.
func runVariant(ctx context.Context, args []string) error {
	var v variant
	f := flag.NewFlagSet("coordinator", flag.ContinueOnError)
	f.StringVar(&v.data, "data", "", "data folder")
	f.StringVar(&v.listen, "listen-agents", "127.0.0.1:7600", "address for agents")
	f.StringVar(&v.listenHTTP, "listen-http", "127.0.0.1:7680", "address of the REST service")
	f.StringVar(&v.settler, "settle", "", "address where a request makes it give memory back")
	f.StringVar(&v.profile, "cpuprofile", "", "file for a CPU profile")
	f.BoolVar(&v.durable, "durable", false, "keep the store on disk")
	f.BoolVar(&v.curve, "curve", false, "ask agents for keys")
	if err := f.Parse(args); err != nil {
		return err
	}
	coordinator.SetHeapFloor(48 << 20) // as `muster up` does
	if v.profile != "" {
		f, err := os.Create(v.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return v.run(ctx, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
}

func (v variant) open(log *slog.Logger) (store.Store, error) {
	if !v.durable {
		return store.NewMem(coordinator.Spaces...), nil
	}
	return boltstore.Open(filepath.Join(v.data, storeFile), boltstore.Options{Log: log}, coordinator.Spaces...)
}

func (v variant) security(c *coordinator.Coordinator) (bus.Security, error) {
	if !v.curve {
		return bus.Null(), nil
	}
	b, err := os.ReadFile(filepath.Join(v.data, keyFile))
	if err != nil {
		return nil, err
	}
	secret, err := bus.ParseSecretKey(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, err
	}
	return bus.CurveServer(secret, c.Authorize), nil
}

func (v variant) run(ctx context.Context, log *slog.Logger) (err error) {
	if err := os.MkdirAll(v.data, 0o700); err != nil {
		return err
	}
	db, err := v.open(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := coordinator.EnsureAdminToken(ctx, db, filepath.Join(v.data, tokenFile)); err != nil {
		return err
	}
	ln, err := bus.Listen("tcp://" + v.listen)
	if err != nil {
		return err
	}
	defer ln.Close()
	httpLn, err := net.Listen("tcp", v.listenHTTP)
	if err != nil {
		return err
	}
	defer httpLn.Close()

	metrics, mux := prometheus.NewRegistry(), bus.NewMux()
	router := bus.NewRouter(bus.Config{Identity: "muster", Log: log, Metrics: metrics}, mux)
	coord, err := coordinator.New(ctx, db, coordinator.Config{Log: log, Metrics: metrics})
	if err != nil {
		return err
	}
	coord.Register(mux)
	inside := bufconn.Listen(1 << 20)
	defer inside.Close()
	conn, err := grpc.NewClient("passthrough:///coordinator", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.DialContext(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	sec, err := v.security(coord)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	api := northbound.New(coord.Direct(ctx, conn), northbound.Config{Log: log, Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})})
	if v.settler != "" {
		g.Go(func() error { return settleWhenAsked(ctx, v.settler) })
	}
	g.Go(func() error { return router.Serve(ctx, ln, sec) })
	g.Go(func() error { return coord.Run(ctx) })
	g.Go(func() error { return coord.ServeGRPC(ctx, inside) })
	g.Go(func() error { return api.Serve(ctx, httpLn) })
	return g.Wait()
}

// settleWhenAsked gives memory back to the system at each request.
func settleWhenAsked(ctx context.Context, addr string) error {
	s := &http.Server{Addr: addr, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { debug.FreeOSMemory() })}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}
