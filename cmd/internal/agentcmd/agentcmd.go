// Package agentcmd is the agent as a command line: the flags of muster-agentd,
// and the agent that they describe. The agents of `muster demo` are the same.
package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/agentd"
	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/cmd/internal/keyfile"
	"github.com/musterhq/muster/cmd/internal/release"
)

// Flags are those of an agent. Their variables begin with MUSTER_AGENT_, so that
// an agent and a coordinator can share an environment.
func Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "coordinator", Usage: "`ENDPOINT` of a coordinator, tcp://HOST:PORT or ipc://PATH; may be repeated",
			Value: cli.NewStringSlice("tcp://127.0.0.1:7600"), EnvVars: []string{"MUSTER_COORDINATOR"}},
		&cli.StringFlag{Name: "server-key", Usage: "the coordinator's public `KEY`, as `muster up` prints it; then the link is encrypted", EnvVars: []string{"MUSTER_SERVER_KEY"}},
		&cli.BoolFlag{Name: "insecure-southbound", Usage: "go to another host without encryption", EnvVars: []string{"MUSTER_AGENT_INSECURE_SOUTHBOUND"}},
		&cli.StringFlag{Name: "data", Usage: "data folder `DIR`; made if it does not exist", Value: defaultData(), EnvVars: []string{"MUSTER_AGENT_DATA"}},
		&cli.StringFlag{Name: "id", Usage: "agent `ID`, kept in the data folder", DefaultText: "the host name", EnvVars: []string{"MUSTER_AGENT_ID"}},
		&cli.StringSliceFlag{Name: "tag", Usage: "tag `NAME=VALUE`; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_AGENT_TAGS"}},
		&cli.StringSliceFlag{Name: "tags-from-env", Usage: "a tag from the variable `NAME`, if it is set; may be repeated", EnvVars: []string{"MUSTER_AGENT_TAGS_FROM_ENV"}},
		&cli.StringFlag{Name: "plugins", Usage: "folder `DIR` of plugins: each program in it is a command type", EnvVars: []string{"MUSTER_AGENT_PLUGINS"}},
		&cli.StringSliceFlag{Name: "allow", Usage: "allow `WHAT`: exec, the built-in type that runs any program, or hooks, the programs that configs name; may be repeated", EnvVars: []string{"MUSTER_AGENT_ALLOW"}},
		&cli.StringFlag{Name: "config-root", Usage: "folder `DIR` below which configs are put; it must exist", DefaultText: "configs in the data folder", EnvVars: []string{"MUSTER_AGENT_CONFIG_ROOT", "MUSTER_CONFIG_ROOT"}},
		&cli.DurationFlag{Name: "stop-grace", Usage: "`TIME` that a program has between TERM and KILL", Value: 10 * time.Second, EnvVars: []string{"MUSTER_AGENT_STOP_GRACE"}},
		&cli.StringFlag{Name: "log", Usage: "`LEVEL`: debug, info, warn or error", Value: "info", EnvVars: []string{"MUSTER_AGENT_LOG"}},
	}
}

// Run is the agent that the flags describe, until ctx ends.
func Run(ctx context.Context, c *cli.Context) (err error) {
	if c.NArg() > 0 {
		return fmt.Errorf("an agent takes no arguments, got %q", c.Args().First())
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log"))); err != nil {
		return fmt.Errorf("--log %q: want debug, info, warn or error", c.String("log"))
	}
	log := slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level}))
	if c.Duration("stop-grace") <= 0 {
		return fmt.Errorf("--stop-grace %v: want a time above 0", c.Duration("stop-grace"))
	}
	for _, endpoint := range c.StringSlice("coordinator") {
		if err := checkEndpoint(endpoint); err != nil {
			return err
		}
	}
	if err := checkSecurity(c); err != nil {
		return err
	}
	tags, err := tagsOf(c.StringSlice("tags-from-env"), c.StringSlice("tag"))
	if err != nil {
		return err
	}
	agent, err := agentd.New(agentd.Config{
		Dir:        c.String("data"),
		ID:         c.String("id"),
		Version:    release.Version(),
		Tags:       tags,
		PluginDir:  c.String("plugins"),
		Allow:      c.StringSlice("allow"),
		ConfigRoot: c.String("config-root"),
		StopGrace:  c.Duration("stop-grace"),
		Log:        log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	sec, err := security(c, log)
	if err != nil {
		return err
	}
	mux := bus.NewMux()
	agent.Register(mux)
	dealer := bus.NewDealer(bus.Config{Identity: agent.ID(), Log: log}, mux, c.StringSlice("coordinator"), sec, nil)
	agent.Bind(dealer)

	g, ctx := errgroup.WithContext(ctx)
	linked, hangUp := context.WithCancel(context.WithoutCancel(ctx)) // so that the agent can say how its programs ended
	g.Go(func() error {
		defer hangUp()
		return agent.Run(ctx)
	})
	g.Go(func() error { return dealer.Run(linked) })
	return g.Wait()
}

// keyFile is in the agent's data folder: its secret key.
const keyFile = "agent.key"

// security is NULL, or CURVE with the agent's own key when the coordinator's is
// given. The log names the own key as `muster keys pending` does.
func security(c *cli.Context, log *slog.Logger) (bus.Security, error) {
	if c.String("server-key") == "" {
		return bus.Null(), nil
	}
	server, err := bus.ParsePublicKey(c.String("server-key"))
	if err != nil {
		return nil, fmt.Errorf("--server-key: %w", err)
	}
	secret, err := keyfile.Load(filepath.Join(c.String("data"), keyFile))
	if err != nil {
		return nil, err
	}
	log.Info("the coordinator lets this key in once it is approved there", "key", secret.Public().Fingerprint())
	return bus.CurveClient(secret, server), nil
}

// checkSecurity refuses to go to another host in the clear unless told to.
func checkSecurity(c *cli.Context) error {
	if c.String("server-key") != "" || c.Bool("insecure-southbound") {
		return nil
	}
	for _, endpoint := range c.StringSlice("coordinator") {
		scheme, rest, _ := strings.Cut(endpoint, "://")
		host, _, _ := net.SplitHostPort(rest)
		if ip := net.ParseIP(host); scheme == "tcp" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("--coordinator %q is another host: give its --server-key, which muster up prints there, or --insecure-southbound", endpoint)
		}
	}
	return nil
}

// checkEndpoint refuses what could never be dialled; the dealer would try for ever.
func checkEndpoint(endpoint string) error {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	if scheme == "ipc" && rest != "" {
		return nil
	}
	if host, port, err := net.SplitHostPort(rest); scheme == "tcp" && err == nil && host != "" && port != "" {
		return nil
	}
	return fmt.Errorf("--coordinator %q: want tcp://HOST:PORT or ipc://PATH", endpoint)
}

// tagsOf takes tags from variables of the environment and from NAME=VALUE pairs;
// these go first.
func tagsOf(variables, pairs []string) (map[string]string, error) {
	tags := map[string]string{}
	for _, name := range variables {
		if value, ok := os.LookupEnv(name); ok {
			tags[name] = value
		}
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--tag %q: want NAME=VALUE", pair)
		}
		tags[name] = value
	}
	return tags, nil
}

func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/muster-agent"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "muster-agent-data"
	}
	return filepath.Join(home, ".local/share/muster-agent")
}
