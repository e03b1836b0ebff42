package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

const rolloutExits = "Exit codes: 0 every agent runs the version, 1 usage or server error, 2 some failed, or it was halted or rolled back, 3 none failed but some\n" +
	"were not reached, or it was aborted or superseded, 4 no targets, 130 interrupted (the rollout goes on)."

func rolloutCommands() *cli.Command {
	return group("rollout", "bring a version to those bound to a config, a few at a time",
		rolloutStartCommand(), rolloutListCommand(), rolloutShowCommand(), rolloutWatchCommand(),
		rolloutControlCommand("pause", "offer nothing more until resume"),
		rolloutControlCommand("resume", "go on after pause, or after too many failures halted it"),
		rolloutControlCommand("abort", "end it; those reached go back"))
}

// planFlags describe how a rollout goes.
func planFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "group", Aliases: []string{"g"}, Usage: "only what is bound to the `GROUP`; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_ROLLOUT_GROUPS"}},
		&cli.StringFlag{Name: "canary", Usage: "`N` or N% of the agents go first, alone", DefaultText: "none", EnvVars: []string{"MUSTER_ROLLOUT_CANARY"}},
		&cli.StringFlag{Name: "batch", Usage: "at most `N` or N% of the agents at a time", DefaultText: "all at once", EnvVars: []string{"MUSTER_ROLLOUT_BATCH"}},
		&cli.StringFlag{Name: "max-failures", Usage: "halt after more than `N` or N% of the agents failed", DefaultText: "0", EnvVars: []string{"MUSTER_ROLLOUT_MAX_FAILURES"}},
		&cli.StringFlag{Name: "pause-between", Usage: "`TIME` between the end of one agent and the start of the next in its place", EnvVars: []string{"MUSTER_ROLLOUT_PAUSE_BETWEEN"}},
		&cli.StringFlag{Name: "vanish-after", Usage: "`TIME` after which an agent that was offered the version and is gone counts as failed", DefaultText: "the server's: 60s", EnvVars: []string{"MUSTER_ROLLOUT_VANISH_AFTER"}},
		&cli.BoolFlag{Name: "keep-on-halt", Usage: "when it is halted, leave those reached as they are", EnvVars: []string{"MUSTER_ROLLOUT_KEEP_ON_HALT"}},
		&cli.StringFlag{Name: "note", Usage: "`WHY`, for those who read it later", EnvVars: []string{"MUSTER_ROLLOUT_NOTE"}},
		dryRunFlag("say whom it would reach, and change nothing"), yesFlag(), detachFlag(), waitOfflineFlag(), outputFlag(),
	}, more...)
}

func detachFlag() cli.Flag {
	return &cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "do not wait for the end of a rollout", EnvVars: []string{"MUSTER_ROLLOUT_DETACH"}}
}

func waitOfflineFlag() cli.Flag {
	return &cli.BoolFlag{Name: "wait-offline", Usage: "wait for agents that are offline, too, also after the rollout has ended: until each runs the version", EnvVars: []string{"MUSTER_ROLLOUT_WAIT_OFFLINE"}}
}

func planOf(c *cli.Context, version int) rolloutBody {
	return rolloutBody{Version: version, Groups: c.StringSlice("group"), Plan: rolloutOf(c), KeepOnHalt: c.Bool("keep-on-halt"), Note: c.String("note")}
}

func rolloutStartCommand() *cli.Command {
	return &cli.Command{
		Name: "start", Usage: "start a rollout and watch it", ArgsUsage: "CONFIG", Description: rolloutExits,
		Flags: serverFlags(planFlags(versionFlag("the version `N`"))...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			name, n := c.Args().First(), c.Int("version")
			if !c.IsSet("version") {
				f, err := cl.config(c.Context, name)
				if err != nil {
					return err
				}
				n = f.LatestVersion
			}
			return startRollout(c, cl, asJSON, name, planOf(c, n))
		}),
	}
}

func configsRollbackCommand() *cli.Command {
	return &cli.Command{
		Name: "rollback", Usage: "bring an older version back: a rollout of it", ArgsUsage: "CONFIG --to N", Description: rolloutExits,
		Flags: serverFlags(planFlags(&cli.IntFlag{Name: "to", Usage: "the version `N`", DefaultText: "none, it is needed", EnvVars: []string{"MUSTER_ROLLBACK_TO"}})...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			if !c.IsSet("to") {
				return usagef("say which version: --to N; muster configs versions %s lists them", c.Args().First())
			}
			return startRollout(c, cl, asJSON, c.Args().First(), planOf(c, c.Int("to")))
		}),
	}
}

// startRollout starts one and, unless it is detached, returns what came of it.
func startRollout(c *cli.Context, cl *client, asJSON bool, name string, body rolloutBody) error {
	raw, r, err := cl.startRollout(c.Context, name, body, true)
	if err != nil {
		return noTargets(err)
	}
	if c.Bool("dry-run") {
		if asJSON {
			return printJSON(c.App.Writer, raw)
		}
		return showRolloutPreview(c, cl, name, body, r.Counts.Total)
	}
	fleet, err := cl.fleetSize(c.Context)
	if err != nil {
		return err
	}
	if err := largeShare(c.Bool("yes"), r.Counts.Total, fleet); err != nil {
		return err
	}
	if raw, r, err = cl.startRollout(c.Context, name, body, false); err != nil {
		return noTargets(err)
	}
	if c.Bool("detach") {
		if asJSON {
			return printJSON(c.App.Writer, raw)
		}
		tell(c, asJSON, "%s", r.ID)
		return nil
	}
	return newWatcher(c, cl, asJSON).watch(c.Context, raw, r)
}

// showRolloutPreview lists who would get another version than now. While a
// rollout is in progress that is not known, and only the number is told.
func showRolloutPreview(c *cli.Context, cl *client, name string, body rolloutBody, total int) error {
	f, err := cl.config(c.Context, name)
	if err != nil {
		return err
	}
	then := configBody{Name: name}
	for _, b := range f.Bindings {
		if len(body.Groups) == 0 || slices.Contains(body.Groups, b.Group) {
			b.Version = body.Version
		}
		then.Bindings = append(then.Bindings, b)
	}
	p, err := cl.previewConfig(c.Context, then)
	if hasCode(err, "ROLLOUT_IN_PROGRESS") {
		tell(c, false, "version %d would go to %d agents, in place of rollout %s; nothing was changed", body.Version, total, f.RolloutID)
		return nil
	}
	if err != nil {
		return err
	}
	printConfigChanges(c, p)
	tell(c, false, "version %d would go to %d agents, %d of them have another; nothing was changed", body.Version, total, len(p.Changes))
	return nil
}

func rolloutListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "rollouts, of one config or all, newest first", ArgsUsage: "[CONFIG]",
		Flags: serverFlags(&cli.IntFlag{Name: "limit", Usage: "show at most `N` (0: all)", Value: 20, EnvVars: []string{"MUSTER_LIMIT"}}, outputFlag()),
		Action: asking(0, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			path := "/v1/rollouts"
			if c.NArg() > 0 {
				path = configPath(c.Args().First(), "/rollouts")
			}
			raw, err := cl.list(c.Context, path, "rollouts", c.Int("limit"))
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "rollouts", raw, []string{"ROLLOUT", "CONFIG", "VERSION", "STATE", "AGENTS", "CREATED"}, func(r configRollout) []string {
				return []string{r.ID, r.Config, strconv.Itoa(r.Version), r.State, r.Counts.String(), moment(r.CreateTime)}
			})
		}),
	}
}

func rolloutShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "one rollout, and where each of its agents stands", ArgsUsage: "ROLLOUT", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, r, err := cl.rollout(c.Context, c.Args().First(), 0)
			if err != nil {
				return err
			}
			rawTargets, targets, err := cl.rolloutTargets(c.Context, r.ID, nil)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"rollout": raw, "targets": nonNil(rawTargets)})
			}
			printFacts(c, [][2]string{
				{"id", r.ID}, {"config", r.Config}, {"version", strconv.Itoa(r.Version)}, {"groups", strings.Join(r.Groups, ", ")}, {"plan", r.Plan.String()},
				{"state", r.State}, {"reason", r.StateReason}, {"agents", r.Counts.String()}, {"note", r.Note}, {"created", moment(r.CreateTime)}, {"ended", moment(r.EndTime)},
			})
			printRolloutTargets(c.App.Writer, targets)
			return nil
		}),
	}
}

func rolloutWatchCommand() *cli.Command {
	return &cli.Command{
		Name: "watch", Usage: "show how a rollout goes, until it ends", ArgsUsage: "ROLLOUT", Description: rolloutExits,
		Flags: serverFlags(waitOfflineFlag(), outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, r, err := cl.rollout(c.Context, c.Args().First(), 0)
			if err != nil {
				return err
			}
			return newWatcher(c, cl, asJSON).watch(c.Context, raw, r)
		}),
	}
}

// rolloutControlCommand is pause, resume or abort.
func rolloutControlCommand(verb, usage string) *cli.Command {
	return controlCommand(verb, usage, "ROLLOUT", rolloutPath, func(r configRollout) string {
		return fmt.Sprintf("%s: %s, %s", r.ID, r.State, r.Counts)
	})
}

// rollout asks for a rollout; with a wait the answer comes when it has ended, or
// after the wait.
func (c *client) rollout(ctx context.Context, id string, wait time.Duration) (raw json.RawMessage, r configRollout, err error) {
	return ask[configRollout](ctx, c, "GET", rolloutPath(id, ""), waitQuery(wait), nil, nil)
}

// rolloutTargets lists those of a rollout, in a query that may be nil.
func (c *client) rolloutTargets(ctx context.Context, id string, query url.Values) ([]json.RawMessage, []rolloutTarget, error) {
	raw, err := c.listWhere(ctx, rolloutPath(id, "/targets"), "targets", query, 0)
	if err != nil {
		return nil, nil, err
	}
	rows, err := decodeRows[rolloutTarget](raw)
	return raw, rows, err
}

// startRollout starts one, or counts whom it would reach.
func (c *client) startRollout(ctx context.Context, config string, body rolloutBody, dryRun bool) (raw json.RawMessage, r configRollout, err error) {
	query := url.Values{}
	if dryRun {
		query.Set("dry_run", "1")
	}
	header := http.Header{"Idempotency-Key": {rand.Text()}}
	return ask[configRollout](ctx, c, "POST", configPath(config, "/rollouts"), query, header, body)
}

// fleetSize counts the known agents.
func (c *client) fleetSize(ctx context.Context) (int, error) {
	var p groupPreview
	err := c.json(ctx, "POST", "/v1/groups/preview", url.Values{"page_size": {"1"}}, groupBody{}, &p)
	return p.Fleet, err
}
