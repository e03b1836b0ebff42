// Command muster-load simulates agents, to see how a coordinator bears them. It
// runs nothing and keeps nothing on disk, stops by itself, and prints numbers; it
// does not judge them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
	"github.com/musterhq/muster/cmd/internal/simagent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	if err := newApp(os.Stdout, os.Stderr).RunContext(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "muster-load:", err)
		os.Exit(1)
	}
}

func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:            "muster-load",
		Usage:           "simulate many agents of a muster coordinator",
		Flags:           flags(),
		Action:          load,
		Writer:          stdout,
		ErrWriter:       stderr,
		Version:         release.Version(),
		HideHelpCommand: true,
		OnUsageError:    arguments.Refuse,
		ExitErrHandler:  func(*cli.Context, error) {}, // main tells the error
	}
}

// flags are those of a load. Their variables begin with MUSTER_LOAD_.
func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "coordinator", Usage: "`ENDPOINT` of the coordinator, tcp://HOST:PORT or ipc://PATH", Value: "tcp://127.0.0.1:7600", EnvVars: []string{"MUSTER_COORDINATOR"}},
		&cli.BoolFlag{Name: "anywhere", Usage: "allow a coordinator that is not on this machine", EnvVars: []string{"MUSTER_LOAD_ANYWHERE"}},
		&cli.IntFlag{Name: "agents", Usage: "simulate `N` agents", Value: 100, EnvVars: []string{"MUSTER_LOAD_AGENTS"}},
		&cli.DurationFlag{Name: "duration", Usage: "stop after `TIME`", Value: 30 * time.Second, EnvVars: []string{"MUSTER_LOAD_DURATION"}},
		&cli.StringFlag{Name: "prefix", Usage: "agents are called `PREFIX` and a number", Value: "sim-", EnvVars: []string{"MUSTER_LOAD_PREFIX"}},
		&cli.StringSliceFlag{Name: "tag", Usage: "tag `NAME=VALUE` of every agent; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_LOAD_TAGS"}},
		&cli.StringSliceFlag{Name: "type", Usage: "command `TYPE` that the agents can run; may be repeated", Value: cli.NewStringSlice("exec", "ping"), EnvVars: []string{"MUSTER_LOAD_TYPES"}},
		&cli.DurationFlag{Name: "beat-interval", Usage: "beat each `TIME`, ±10 %", DefaultText: "as the coordinator says", EnvVars: []string{"MUSTER_LOAD_BEAT_INTERVAL"}},
		&cli.DurationFlag{Name: "delay", Usage: "each command takes `TIME`", EnvVars: []string{"MUSTER_LOAD_DELAY"}},
		&cli.BoolFlag{Name: "brief", Usage: "tell only how commands end, not that they run", EnvVars: []string{"MUSTER_LOAD_BRIEF"}},
		&cli.IntFlag{Name: "result-size", Usage: "each command gives `BYTES` of JSON as its result", EnvVars: []string{"MUSTER_LOAD_RESULT_SIZE"}},
		&cli.IntFlag{Name: "output-size", Usage: "each command writes `BYTES` to stdout", EnvVars: []string{"MUSTER_LOAD_OUTPUT_SIZE"}},
		&cli.StringFlag{Name: "fail", Usage: "`SHARE` of commands that fail, such as 0.01 or 1%", EnvVars: []string{"MUSTER_LOAD_FAIL"}},
		&cli.StringFlag{Name: "vanish", Usage: "`SHARE` of commands at which the agent leaves for ever without a word", EnvVars: []string{"MUSTER_LOAD_VANISH"}},
		&cli.IntFlag{Name: "spare", Usage: "the first `N` commands neither fail nor make an agent vanish", EnvVars: []string{"MUSTER_LOAD_SPARE"}},
		&cli.BoolFlag{Name: "progress", Usage: "say each second how it goes", EnvVars: []string{"MUSTER_LOAD_PROGRESS"}},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of the report: text or json", Value: "text", EnvVars: []string{"MUSTER_LOAD_OUTPUT"}},
		&cli.StringFlag{Name: "log", Usage: "`LEVEL`: debug, info, warn or error", Value: "warn", EnvVars: []string{"MUSTER_LOAD_LOG"}},
	}
}

// load is the whole program. An error is one of usage, or says that no agent was
// ever let in.
func load(c *cli.Context) error {
	cfg, err := fleetConfig(c)
	if err != nil {
		return err
	}
	show, err := formatOf(c.String("output"))
	if err != nil {
		return err
	}
	if c.Duration("duration") <= 0 {
		return fmt.Errorf("--duration %v: want a time above 0", c.Duration("duration"))
	}
	to, err := resolve(c.Context, c.String("coordinator"), c.Bool("anywhere"))
	if err != nil {
		return err
	}
	if err := checkSockets(cfg.Agents); err != nil {
		return err
	}
	cfg.Dial = to.dial
	fleet, err := simagent.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("duration"))
	defer cancel()
	var watching sync.WaitGroup
	if c.Bool("progress") {
		watching.Go(func() { progress(ctx, c.App.ErrWriter, fleet) })
	}
	fleet.Run(ctx)
	watching.Wait()
	r := fleet.Report()
	if err := show(c.App.Writer, r); err != nil {
		return err
	}
	if r.Registrations == 0 {
		return errors.New("no agent was ever registered")
	}
	return nil
}

const (
	maxAgents = 100_000
	maxResult = 192 << 10 // bytes of a result that a coordinator takes
	maxOutput = 1 << 20   // bytes of output that a real agent keeps
)

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// fleetConfig is what the flags say of the agents.
func fleetConfig(c *cli.Context) (cfg simagent.Config, err error) {
	if c.NArg() > 0 {
		return cfg, fmt.Errorf("muster-load takes no arguments, got %q", c.Args().First())
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log"))); err != nil {
		return cfg, fmt.Errorf("--log %q: want debug, info, warn or error", c.String("log"))
	}
	cfg = simagent.Config{
		Agents: c.Int("agents"), Prefix: c.String("prefix"), Types: c.StringSlice("type"),
		BeatInterval: c.Duration("beat-interval"), Delay: c.Duration("delay"),
		ResultSize: c.Int("result-size"), OutputSize: c.Int("output-size"), Brief: c.Bool("brief"), Spare: c.Int("spare"),
		Log: slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level})),
	}
	if !prefixForm.MatchString(cfg.Prefix) {
		return cfg, fmt.Errorf("--prefix %q: want up to 100 letters, digits, '.', '_' and '-', the first a letter or digit", cfg.Prefix)
	}
	if cfg.Tags, err = tagsOf(c.StringSlice("tag")); err != nil {
		return cfg, err
	}
	if cfg.Fail, err = shareOf("fail", c.String("fail")); err != nil {
		return cfg, err
	}
	if cfg.Vanish, err = shareOf("vanish", c.String("vanish")); err != nil {
		return cfg, err
	}
	return cfg, cmp.Or(
		within("agents", cfg.Agents, 1, maxAgents),
		within("result-size", cfg.ResultSize, 0, maxResult),
		within("output-size", cfg.OutputSize, 0, maxOutput),
		within("spare", cfg.Spare, 0, 1<<30),
		notNegative("delay", cfg.Delay),
		notNegative("beat-interval", cfg.BeatInterval),
	)
}

func within(flag string, n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("--%s %d: want %d to %d", flag, n, low, high)
	}
	return nil
}

func notNegative(flag string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("--%s %v: want a time from 0 up", flag, d)
	}
	return nil
}

// shareOf reads "0.01" or "1%".
func shareOf(flag, text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) { // NaN is not
		return 0, fmt.Errorf("--%s %q: want a share such as 0.01 or 1%%", flag, text)
	}
	return share, nil
}

func tagsOf(pairs []string) (map[string]string, error) {
	tags := map[string]string{}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--tag %q: want NAME=VALUE", pair)
		}
		tags[name] = value
	}
	return tags, nil
}
