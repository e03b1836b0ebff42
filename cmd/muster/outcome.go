package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// outcome is the exit code of a command whose reachable targets are final.
func outcome(cmd command) error {
	c := cmd.Counts
	switch {
	case c.Total == 0:
		return &codedError{exitNoTargets, "no targets"}
	case cmd.halted():
		return &codedError{exitFailed, fmt.Sprintf("halted: %s; %d targets were not sent. muster commands resume %s goes on, cancel ends it", clean(cmd.StateReason), c.Queued, cmd.ID)}
	case c.Succeeded == c.Total:
		return nil
	case c.failures() > 0:
		return &codedError{code: exitFailed}
	}
	return &codedError{code: exitUnreached}
}

// show prints the targets of a command with what they wrote.
func (r *runner) show(ctx context.Context, raw json.RawMessage, cmd command) error {
	rawTargets, targets, err := r.client.targets(ctx, cmd.ID, nil)
	if err != nil {
		return err
	}
	if r.json {
		return printJSON(r.stdout, map[string]any{"command": raw, "targets": nonNil(rawTargets)})
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
		return oneLine(t.Reason)
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
