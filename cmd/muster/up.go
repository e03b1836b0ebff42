package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/cmd/internal/keyfile"
	"github.com/musterhq/muster/cmd/internal/signals"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	"github.com/musterhq/muster/northbound"
)

func upCommand() *cli.Command {
	return &cli.Command{
		Name:  "up",
		Usage: "run the coordinator and its REST service",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Usage: "data folder `DIR`; made if it does not exist", Value: defaultData(), EnvVars: []string{"MUSTER_DATA"}},
			&cli.StringSliceFlag{Name: "listen-agents", Usage: "`ENDPOINT` for agents, tcp:// or ipc://; may be repeated",
				Value: cli.NewStringSlice("tcp://127.0.0.1:7600"), EnvVars: []string{"MUSTER_LISTEN_AGENTS"}},
			&cli.StringFlag{Name: "listen-http", Usage: "`ADDRESS` of the REST service", Value: "127.0.0.1:7680", EnvVars: []string{"MUSTER_LISTEN_HTTP"}},
			&cli.BoolFlag{Name: "curve", Usage: "ask agents for keys on loopback and ipc, too", EnvVars: []string{"MUSTER_CURVE"}},
			&cli.BoolFlag{Name: "insecure-southbound", Usage: "serve agents on other hosts without encryption and without keys", EnvVars: []string{"MUSTER_INSECURE_SOUTHBOUND"}},
			&cli.BoolFlag{Name: "open-metrics", Usage: "serve /metrics without a token", EnvVars: []string{"MUSTER_OPEN_METRICS"}},
			&cli.DurationFlag{Name: "heartbeat", Usage: "shortest `TIME` between two heartbeats of an agent", DefaultText: "10s", EnvVars: []string{"MUSTER_HEARTBEAT"}},
			&cli.DurationFlag{Name: "offline-after", Usage: "`TIME` of silence after which an agent is OFFLINE", DefaultText: "5m", EnvVars: []string{"MUSTER_OFFLINE_AFTER"}},
			&cli.DurationFlag{Name: "grace", Usage: "`TIME` after expiry and timeout in which an agent may still report", DefaultText: "1m", EnvVars: []string{"MUSTER_GRACE"}},
			&cli.StringFlag{Name: "forget-after", Usage: "`TIME` after which an agent that is OFFLINE is deleted, such as 12h or 30d; 0: never", Value: "30d", EnvVars: []string{"MUSTER_FORGET_AFTER"}},
			&cli.StringFlag{Name: "offline-commands", Usage: "`WHAT` becomes of commands that were not sent yet when their agent goes OFFLINE: queue keeps them until they expire, cancel ends them, whatever the command asks for",
				Value: "queue", EnvVars: []string{"MUSTER_OFFLINE_COMMANDS"}},
			&cli.StringFlag{Name: "keep-for", Usage: "`TIME` that ended commands are kept, such as 30d, unless one of the next two is reached first", Value: "90d", EnvVars: []string{"MUSTER_KEEP_FOR"}},
			&cli.IntFlag{Name: "keep-commands", Usage: "keep at most `N` ended commands", Value: 1_000_000, EnvVars: []string{"MUSTER_KEEP_COMMANDS"}},
			&cli.StringFlag{Name: "keep-bytes", Usage: "remove ended commands, oldest first, when the history takes more than `BYTES`", Value: "64GiB", EnvVars: []string{"MUSTER_KEEP_BYTES"}},
			logFlag(),
		},
		Action: func(c *cli.Context) error {
			log, err := newLog(c)
			if err != nil {
				return err
			}
			if c.NArg() > 0 {
				return usagef("up takes no arguments, got %q", c.Args().First())
			}
			settings, err := settingsOf(c)
			if err != nil {
				return err
			}
			signals.OutliveLog()
			if os.Getenv("GOGC") == "" { // else its rule holds
				coordinator.SetHeapFloor(heapFloor)
			}
			s := &server{
				data:        c.String("data"),
				south:       southbound{endpoints: c.StringSlice("listen-agents"), curve: c.Bool("curve"), insecure: c.Bool("insecure-southbound")},
				listenHTTP:  c.String("listen-http"),
				openMetrics: c.Bool("open-metrics"),
				settings:    settings,
				log:         log,
			}
			return s.run(c.Context, func(at addresses) {
				log.Info("serving", "agents", at.agents, "http", at.http, "token_file", at.tokenFile)
				for _, line := range at.join {
					fmt.Fprintf(c.App.Writer, "An agent on another host joins with\n  %s\nand waits for `muster keys approve`.\n", line)
				}
			})
		},
	}
}

// heapFloor is what a coordinator of about 1,000 agents comes to.
const heapFloor = 48 << 20

// settingsOf are the coordinator's.
func settingsOf(c *cli.Context) (coordinator.Config, error) {
	s := coordinator.Config{
		HeartbeatInterval: c.Duration("heartbeat"), OfflineAfter: c.Duration("offline-after"), Grace: c.Duration("grace"),
		KeepCommands: c.Int("keep-commands"),
	}
	if s.KeepCommands <= 0 {
		return s, usagef("--keep-commands %d: want a number above 0", s.KeepCommands)
	}
	var err error
	if s.KeepFor, err = durationOf(c.String("keep-for")); err != nil || s.KeepFor == 0 {
		return s, usagef("--keep-for %q: want a time above 0 such as 12h or 30d", c.String("keep-for"))
	}
	if s.ForgetAfter, err = durationOf(c.String("forget-after")); err != nil {
		return s, usagef("--forget-after %q: want a time such as 12h or 30d, or 0", c.String("forget-after"))
	}
	if s.ForgetAfter == 0 {
		s.ForgetAfter = -1 // never
	}
	if s.CancelOffline = c.String("offline-commands") == "cancel"; !s.CancelOffline && c.String("offline-commands") != "queue" {
		return s, usagef("--offline-commands %q: want queue or cancel", c.String("offline-commands"))
	}
	if s.KeepBytes, err = bytesOf(c.String("keep-bytes")); err != nil {
		return s, usagef("--keep-bytes %v", err)
	}
	return s, nil
}

func logFlag() cli.Flag {
	return &cli.StringFlag{Name: "log", Usage: "`LEVEL`: debug, info, warn or error", Value: "info", EnvVars: []string{"MUSTER_LOG"}}
}

func newLog(c *cli.Context) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log"))); err != nil {
		return nil, usagef("--log %q: want debug, info, warn or error", c.String("log"))
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level})), nil
}

// server is the coordinator and the REST service in one process.
type server struct {
	data        string
	south       southbound
	listenHTTP  string
	openMetrics bool
	settings    coordinator.Config // Log and Metrics are set by run
	log         *slog.Logger
}

// addresses tells where a server is to be found.
type addresses struct {
	agents    []string // endpoints such as tcp://127.0.0.1:7600
	http      string   // such as http://127.0.0.1:7680
	tokenFile string
	join      []string // commands that start an agent elsewhere
}

// run serves until ctx ends; then all it started is gone and the store is
// closed. It calls ready once, when agents and operators can connect.
func (s *server) run(ctx context.Context, ready func(addresses)) (err error) {
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return fmt.Errorf("--data %s: %w", s.data, err)
	}
	db, err := boltstore.Open(filepath.Join(s.data, storeFile), boltstore.Options{Log: s.log}, coordinator.Spaces...)
	if err != nil {
		return err
	}
	defer func() { // the only order that matters: the store closes last
		if cerr := db.Close(); err == nil {
			err = cerr
		}
	}()
	at := addresses{tokenFile: filepath.Join(s.data, tokenFile)}
	if err := coordinator.EnsureAdminToken(ctx, db, at.tokenFile); err != nil {
		return err
	}

	secret, err := keyfile.Load(filepath.Join(s.data, keyFile))
	if err != nil {
		return err
	}
	gates, err := s.south.open()
	if err != nil {
		return err
	}
	for _, g := range gates {
		defer g.Close()
		at.agents = append(at.agents, g.endpoint())
		if g.curve {
			at.join = append(at.join, joinLine(g.endpoint(), secret.Public()))
		}
	}
	httpLn, err := net.Listen("tcp", s.listenHTTP)
	if err != nil {
		return fmt.Errorf("--listen-http %s: %w", s.listenHTTP, err)
	}
	defer httpLn.Close()
	at.http = "http://" + httpLn.Addr().String()

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := bus.NewMux()
	router := bus.NewRouter(bus.Config{Identity: "muster", Log: s.log, Metrics: metrics}, mux)
	settings := s.settings
	settings.Log, settings.Metrics = s.log, metrics
	coord, err := coordinator.New(ctx, db, settings)
	if err != nil {
		return err
	}
	coord.Register(mux)
	inside := bufconn.Listen(1 << 20)
	defer inside.Close()
	conn, err := grpc.NewClient("passthrough:///coordinator", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), // of a client that does not read, no more than this is held
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.DialContext(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	g, ctx := errgroup.WithContext(ctx)
	api := northbound.New(coord.Direct(ctx, conn), northbound.Config{
		Log: s.log, Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}), OpenMetrics: s.openMetrics,
	})

	for _, gate := range gates {
		g.Go(func() error { return router.Serve(ctx, gate, gate.security(secret, coord)) })
	}
	g.Go(func() error { return coord.Run(ctx) })
	g.Go(func() error { return coord.ServeGRPC(ctx, inside) })
	g.Go(func() error { return api.Serve(ctx, httpLn) })
	ready(at)
	return g.Wait()
}
