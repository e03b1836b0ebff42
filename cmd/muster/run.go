package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/arguments"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run something on agents and wait for what comes of it",
		ArgsUsage: "[AGENT…] [-- ARGV…]",
		Description: "Exit codes: 0 all succeeded, 1 usage or server error, 2 some failed, 3 none failed but some were\n" +
			"unreachable, expired or lost, 4 no targets, 130 interrupted (the command goes on).",
		Flags: serverFlags(
			&cli.BoolFlag{Name: "all", Usage: "every agent that is known", EnvVars: []string{"MUSTER_RUN_ALL"}},
			&cli.StringFlag{Name: "type", Usage: "command `TYPE`", Value: "exec", EnvVars: []string{"MUSTER_RUN_TYPE"}},
			&cli.StringFlag{Name: "input", Usage: "input of the command as `JSON`; for exec, -- ARGV… writes it for you", EnvVars: []string{"MUSTER_RUN_INPUT"}},
			&cli.StringFlag{Name: "name", Usage: "a `LABEL` for people", EnvVars: []string{"MUSTER_RUN_NAME"}},
			&cli.StringFlag{Name: "timeout", Usage: "`TIME` one run may take, such as 30s (the server's default: 10m)", EnvVars: []string{"MUSTER_RUN_TIMEOUT"}},
			&cli.StringFlag{Name: "expires-in", Usage: "`TIME` within which it has to start (the server's default: 1h)", EnvVars: []string{"MUSTER_RUN_EXPIRES_IN"}},
			&cli.StringFlag{Name: "when-offline", Usage: "`RULE` for agents that are offline: cancel or queue", Value: "cancel", EnvVars: []string{"MUSTER_RUN_WHEN_OFFLINE"}},
			&cli.BoolFlag{Name: "wait-offline", Usage: "queue for agents that are offline and wait for them too", EnvVars: []string{"MUSTER_RUN_WAIT_OFFLINE"}},
			outputFlag(),
		),
		Action: func(c *cli.Context) error {
			request, err := newRequest(c)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			r := &runner{client: cl, stdout: c.App.Writer, progress: newProgress(c.App.ErrWriter), json: asJSON, waitOffline: c.Bool("wait-offline")}
			return r.run(c.Context, request)
		},
	}
}

// request is the body of POST /v1/commands.
type request struct {
	Type   string          `json:"type"`
	Name   string          `json:"name,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	Target struct {
		Agents []string `json:"agents,omitempty"`
		All    bool     `json:"all,omitempty"`
	} `json:"target"`
	Timeout     string `json:"timeout,omitempty"`
	ExpiresIn   string `json:"expires_in,omitempty"`
	WhenOffline string `json:"when_offline,omitempty"`
}

func newRequest(c *cli.Context) (*request, error) {
	agents, argv, hasArgv := arguments.Split(c.Args().Slice())
	r := &request{Type: c.String("type"), Name: c.String("name"), Timeout: c.String("timeout"), ExpiresIn: c.String("expires-in")}
	switch r.Target.Agents, r.Target.All = agents, c.Bool("all"); {
	case len(agents) > 0 && r.Target.All:
		return nil, usagef("name agents or say --all, not both")
	case len(agents) == 0 && !r.Target.All:
		return nil, &codedError{exitNoTargets, "no targets: name agents or say --all"}
	}
	switch rule := c.String("when-offline"); {
	case c.Bool("wait-offline"), rule == "queue":
		r.WhenOffline = "QUEUE"
	case rule == "cancel":
		r.WhenOffline = "CANCEL"
	default:
		return nil, usagef("--when-offline %q: want cancel or queue", rule)
	}
	switch input := c.String("input"); {
	case hasArgv && (input != "" || r.Type != "exec"):
		return nil, usagef("-- ARGV… is the input of exec; use it without --input and --type")
	case hasArgv && len(argv) == 0:
		return nil, usagef("nothing to run after --")
	case hasArgv:
		b, err := json.Marshal(map[string][]string{"argv": argv})
		if err != nil {
			return nil, err
		}
		r.Input = b
	case input != "" && !json.Valid([]byte(input)):
		return nil, usagef("--input is not JSON: %s", cut(input, 60))
	case input != "":
		r.Input = json.RawMessage(input)
	case r.Type == "exec":
		return nil, usagef("exec needs -- ARGV… or --input")
	}
	return r, nil
}

// runner submits a command, follows it and shows what came of it.
type runner struct {
	client      *client
	stdout      io.Writer
	progress    *progress
	json        bool
	waitOffline bool
}

// run returns nil when every target succeeded, and else an error with the exit code.
func (r *runner) run(ctx context.Context, req *request) error {
	var cmd command
	if err := r.client.json(ctx, "POST", "/v1/commands", nil, req, &cmd); err != nil {
		if p := (*problem)(nil); errors.As(err, &p) && p.Code == "NO_TARGETS" {
			return &codedError{exitNoTargets, err.Error()}
		}
		return err
	}
	raw, cmd, err := r.follow(ctx, cmd)
	r.progress.clear()
	if ctx.Err() != nil {
		return &codedError{exitInterrupted, fmt.Sprintf("detached; %s goes on: muster commands show %s", cmd.ID, cmd.ID)}
	} else if err != nil {
		return fmt.Errorf("command %s: %w", cmd.ID, err)
	}
	if err := r.show(ctx, raw, cmd); err != nil {
		return fmt.Errorf("command %s: %w", cmd.ID, err)
	}
	return outcome(cmd.Counts)
}

// outcome is the exit code of a command whose reachable targets are final.
func outcome(c counts) error {
	switch {
	case c.Total == 0:
		return &codedError{exitNoTargets, "no targets"}
	case c.Succeeded == c.Total:
		return nil
	case c.failures() > 0:
		return &codedError{code: exitFailed}
	}
	return &codedError{code: exitUnreached}
}

// show prints the targets of a command with what they wrote.
func (r *runner) show(ctx context.Context, raw json.RawMessage, cmd command) error {
	rawTargets, targets, err := r.client.targets(ctx, cmd.ID)
	if err != nil {
		return err
	}
	if r.json {
		return printJSON(r.stdout, map[string]any{"command": raw, "targets": rawTargets})
	}
	rows := make([][]string, len(targets))
	for i, t := range targets {
		rows[i] = []string{t.AgentID, t.State, ending(t), took(t.StartTime, t.EndTime), r.firstLine(ctx, t, i)}
	}
	printTable(r.stdout, []string{"AGENT", "STATE", "EXIT", "TIME", "OUTPUT"}, rows)
	fmt.Fprintf(r.stdout, "%s: %s\n", cmd.ID, countList(cmd.Counts))
	return nil
}

// ending is the exit code, or the signal that ended the program.
func ending(t target) string {
	switch {
	case t.Signal != "":
		return t.Signal
	case t.ExitCode != nil:
		return fmt.Sprint(*t.ExitCode)
	}
	return "-"
}

// shownOutputs is how many targets have their output fetched for the table.
const shownOutputs = 100

// firstLine says in one line what a target has to say: the reason why it is not
// a success, its result, or the start of its output.
func (r *runner) firstLine(ctx context.Context, t target, i int) string {
	const width = 72
	if t.Reason != "" {
		return cut(lineOf([]byte(t.Reason)), width)
	}
	if len(t.Result) > 0 {
		return cut(lineOf(t.Result), width)
	}
	for _, s := range []struct {
		name string
		out  *output
	}{{"stdout", t.Stdout}, {"stderr", t.Stderr}} {
		if s.out == nil || s.out.Kept == 0 {
			continue
		}
		if i >= shownOutputs {
			return "…"
		}
		body, err := r.client.output(ctx, t.CommandID, t.AgentID, s.name)
		if err != nil {
			return cut(err.Error(), width)
		}
		defer body.Close()
		b, err := io.ReadAll(io.LimitReader(body, 4096))
		if err != nil {
			return cut(err.Error(), width)
		}
		return cut(lineOf(b), width)
	}
	return ""
}

// follow waits until each target that can be reached is final. Before it
// returns it has shown the last counts.
func (r *runner) follow(ctx context.Context, cmd command) (raw json.RawMessage, _ command, err error) {
	const (
		round   = 500 * time.Millisecond // how often progress is shown
		patient = time.Minute            // with a server that cannot be reached
		quiet   = 2 * time.Second        // without progress: then ask who is offline
	)
	id := cmd.ID
	answered, moved := time.Now(), time.Now()
	r.progress.show(progressLine(cmd.Counts))
	for {
		asked := time.Now()
		nextRaw, next, err := r.client.command(ctx, id, round)
		switch {
		case ctx.Err() != nil:
			return raw, cmd, ctx.Err()
		case err != nil && (isAnswer(err) || time.Since(answered) > patient):
			return raw, cmd, err
		case err != nil:
			r.progress.show(err.Error() + "; trying again")
		default:
			if next.Counts != cmd.Counts {
				moved = time.Now()
			}
			answered, raw, cmd = time.Now(), nextRaw, next
			r.progress.show(progressLine(cmd.Counts))
			if cmd.ended() {
				return raw, cmd, nil
			}
			if !r.waitOffline && time.Since(moved) > quiet {
				if waiting, err := r.reachable(ctx, id); err == nil && waiting == 0 {
					return raw, cmd, nil
				}
				moved = time.Now()
			}
		}
		select { // an answer that came too soon must not make this loop hot
		case <-time.After(round/5 - time.Since(asked)):
		case <-ctx.Done():
		}
	}
}

// isAnswer says that the server did answer, and would answer the same again.
func isAnswer(err error) bool {
	p := (*problem)(nil)
	return errors.As(err, &p) && p.Status < 500
}

// reachable counts the open targets of a command whose agents are not offline.
func (r *runner) reachable(ctx context.Context, id string) (int, error) {
	_, targets, err := r.client.targets(ctx, id)
	if err != nil {
		return 0, err
	}
	raw, err := r.client.list(ctx, "/v1/agents", "agents", 0)
	if err != nil {
		return 0, err
	}
	agents, err := decodeRows[agent](raw)
	if err != nil {
		return 0, err
	}
	offline := map[string]bool{}
	for _, a := range agents {
		offline[a.ID] = a.Status == "OFFLINE"
	}
	n := 0
	for _, t := range targets {
		if !t.final() && !offline[t.AgentID] {
			n++
		}
	}
	return n, nil
}
