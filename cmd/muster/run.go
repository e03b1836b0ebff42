package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run something on agents and wait for what comes of it",
		ArgsUsage: "[AGENT… | --all | -g GROUP | -l NAME=VALUE | --where CEL] [-- ARGV…]",
		Description: "Exit codes: 0 all succeeded, 1 usage or server error, 2 some failed or the rollout was halted, 3 none failed but some were\n" +
			"unreachable, cancelled, expired or lost, 4 no targets, 130 interrupted (the command goes on).",
		Flags: serverFlags(append(requestFlags(),
			&cli.BoolFlag{Name: "dry-run", Usage: "say who would get it, and send nothing", EnvVars: []string{"MUSTER_RUN_DRY_RUN"}},
			&cli.BoolFlag{Name: "yes", Usage: "more than half of the fleet is meant", EnvVars: []string{"MUSTER_RUN_YES"}},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "print the command's id and do not wait", EnvVars: []string{"MUSTER_RUN_DETACH"}},
			&cli.StringFlag{Name: "idempotency-key", Usage: "`KEY` that makes one command of several such runs", DefaultText: "one for this run alone", EnvVars: []string{"MUSTER_RUN_IDEMPOTENCY_KEY"}},
			outputFlag(),
		)...),
		Action: func(c *cli.Context) error {
			req, err := newRequest(c)
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
			r := &runner{
				client: cl, stdout: c.App.Writer, progress: newProgress(c.App.ErrWriter), json: asJSON,
				key: c.String("idempotency-key"), yes: c.Bool("yes"), detach: c.Bool("detach"), waitOffline: c.Bool("wait-offline"),
			}
			if c.Bool("dry-run") {
				return r.preview(c.Context, req)
			}
			return r.run(c.Context, req)
		},
	}
}

// runner submits a command, follows it and shows what came of it.
type runner struct {
	client      *client
	stdout      io.Writer
	progress    *progress
	json        bool
	key         string // Idempotency-Key ("": a random one)
	yes         bool   // more than half of the fleet is meant
	detach      bool
	waitOffline bool
}

// patient is how long a server that cannot be reached is waited for.
const patient = time.Minute

// run returns nil when every target succeeded, and else an error with the exit code.
func (r *runner) run(ctx context.Context, req *request) error {
	if err := r.checkShare(ctx, req); err != nil {
		return noTargets(err)
	}
	raw, cmd, err := r.submit(ctx, req)
	if err != nil {
		return noTargets(err)
	}
	if r.detach {
		return r.showID(raw, cmd)
	}
	raw, cmd, err = r.follow(ctx, raw, cmd)
	r.progress.clear()
	if ctx.Err() != nil {
		return detached(cmd.ID)
	} else if err != nil {
		return fmt.Errorf("command %s: %w", cmd.ID, err)
	}
	if err := r.show(ctx, raw, cmd); err != nil {
		return fmt.Errorf("command %s: %w", cmd.ID, err)
	}
	return outcome(cmd)
}

func detached(id string) error {
	return &codedError{exitInterrupted, fmt.Sprintf("detached; %s goes on: muster commands show %s", id, id)}
}

// noTargets gives the server's word for it its exit code.
func noTargets(err error) error {
	if hasCode(err, "NO_TARGETS") {
		return &codedError{exitNoTargets, err.Error()}
	}
	return err
}

func (r *runner) showID(raw json.RawMessage, cmd command) error {
	if r.json {
		return printJSON(r.stdout, raw)
	}
	_, err := fmt.Fprintln(r.stdout, cmd.ID)
	return err
}

// submit posts the command, again and again when no answer comes: the key makes
// one command of all attempts. A server that was never reached is not waited
// for. After Ctrl-C an answer under way still has a moment to come, so that the
// id can be told.
func (r *runner) submit(ctx context.Context, req *request) (json.RawMessage, command, error) {
	if r.key == "" {
		r.key = rand.Text()
	}
	const moment, pause = 2 * time.Second, time.Second
	posting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(moment, cancel) })()
	for start, first := time.Now(), true; ; first = false {
		raw, cmd, err := r.client.submit(posting, req, r.key)
		switch {
		case err == nil:
			return raw, cmd, nil
		case posting.Err() != nil:
			return nil, command{}, &codedError{exitInterrupted, "interrupted before the server answered; muster commands list shows whether it was accepted"}
		case ctx.Err() != nil && isUnsent(err):
			return nil, command{}, &codedError{exitInterrupted, "interrupted; nothing was sent"}
		case isAnswer(err) || first && isUnsent(err) || time.Since(start) > patient:
			r.progress.clear()
			return nil, command{}, err
		}
		r.progress.show(err.Error() + "; trying again")
		select {
		case <-time.After(pause):
		case <-posting.Done():
		}
	}
}
