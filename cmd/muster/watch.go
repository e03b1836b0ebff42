package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
)

// watcher follows a rollout and shows what came of it.
type watcher struct {
	client      *client
	stdout      io.Writer
	progress    *progress
	json        bool
	waitOffline bool
}

func newWatcher(c *cli.Context, cl *client, asJSON bool) *watcher {
	return &watcher{client: cl, stdout: c.App.Writer, progress: newProgress(c.App.ErrWriter), json: asJSON, waitOffline: c.Bool("wait-offline")}
}

// watch returns nil when every target runs the version, and else an error with
// the exit code.
func (w *watcher) watch(ctx context.Context, raw json.RawMessage, r configRollout) error {
	id := r.ID
	raw, r, err := w.follow(ctx, raw, r)
	w.progress.clear()
	if ctx.Err() != nil {
		return &codedError{exitInterrupted, fmt.Sprintf("detached; %s goes on: muster configs rollout watch %s", id, id)}
	} else if err != nil {
		return fmt.Errorf("rollout %s: %w", id, err)
	}
	var late latecomers
	if w.waitOffline && r.State == "DONE" && r.Counts.unreached() > 0 {
		if late, err = w.awaitLate(ctx, r); ctx.Err() != nil {
			return &codedError{exitInterrupted, fmt.Sprintf("%s is done; those that were not reached get the version when they come", id)}
		} else if err != nil {
			return fmt.Errorf("rollout %s: %w", id, err)
		}
	}
	if err := w.show(ctx, raw, r, late); err != nil {
		return fmt.Errorf("rollout %s: %w", id, err)
	}
	return rolloutOutcome(r, late)
}

// follow waits until the rollout has ended, or only agents that are offline
// could still bring it on. Before it returns it has shown the last counts.
func (w *watcher) follow(ctx context.Context, raw json.RawMessage, r configRollout) (json.RawMessage, configRollout, error) {
	const (
		round = 500 * time.Millisecond // how often progress is shown
		quiet = 2 * time.Second        // without progress: then ask who cannot be reached
	)
	answered, moved := time.Now(), time.Now()
	w.progress.show(rolloutLine(r))
	for !r.ended() {
		asked := time.Now()
		nextRaw, next, err := w.client.rollout(ctx, r.ID, round)
		switch {
		case ctx.Err() != nil:
			return raw, r, ctx.Err()
		case err != nil && (isAnswer(err) || time.Since(answered) > patient):
			return raw, r, err
		case err != nil:
			w.progress.show(err.Error() + "; trying again")
		default:
			if next.Counts != r.Counts || next.State != r.State {
				moved = time.Now()
			}
			answered, raw, r = time.Now(), nextRaw, next
			w.progress.show(rolloutLine(r))
			if !w.waitOffline && time.Since(moved) > quiet {
				if stuck, err := w.onlyOffline(ctx, r); err == nil && stuck {
					return raw, r, nil
				}
				moved = time.Now()
			}
		}
		select { // an answer that came too soon must not make this loop hot
		case <-time.After(round/5 - time.Since(asked)):
		case <-ctx.Done():
		}
	}
	return raw, r, nil
}

// onlyOffline says that each target which is not through yet, or has not gone
// back, is of an agent that is offline.
func (w *watcher) onlyOffline(ctx context.Context, r configRollout) (bool, error) {
	agents, err := w.client.agents(ctx)
	if err != nil {
		return false, err
	}
	away := map[string]bool{}
	for _, a := range agents {
		away[a.ID] = a.Status == "OFFLINE"
	}
	_, targets, err := w.client.rolloutTargets(ctx, r.ID, nil)
	if err != nil {
		return false, err
	}
	for _, t := range targets {
		open := t.State == "WAITING" || t.State == "OFFERED"
		if r.State == "HALTED" {
			open = t.State != "WAITING" && !t.RolledBack
		}
		if open && !away[t.AgentID] {
			return false, nil
		}
	}
	return true, nil
}

// rolloutLine is such as "[=====     ] 1/4  waiting 3, applied 1  PAUSED".
func rolloutLine(r configRollout) string {
	c := r.Counts
	line := barLine(c.Total-c.Waiting-c.Offered-c.Skipped, c.Total, c.String())
	if r.State != "RUNNING" && r.State != "DONE" {
		line += "  " + r.State
	}
	if r.State != "DONE" && r.StateReason != "" { // of a running one: whom it waits for
		line += ": " + clean(r.StateReason)
	}
	return line
}

// show prints who did not take the version, and how it ended.
func (w *watcher) show(ctx context.Context, raw json.RawMessage, r configRollout, late latecomers) error {
	query := url.Values{"state": {"WAITING,OFFERED,FAILED,VANISHED,SKIPPED"}}
	rawTargets, targets, err := w.client.rolloutTargets(ctx, r.ID, query)
	if err != nil {
		return err
	}
	if w.json {
		return printJSON(w.stdout, map[string]any{"rollout": raw, "targets": nonNil(rawTargets), "late": late.list()})
	}
	targets = slices.DeleteFunc(targets, func(t rolloutTarget) bool { return late[t.AgentID].arrived() })
	if len(targets) > 0 {
		printRolloutTargets(w.stdout, targets)
	}
	state := r.State
	if r.StateReason != "" {
		state += " (" + clean(r.StateReason) + ")"
	}
	_, err = fmt.Fprintf(w.stdout, "%s: version %d of %s %s: %s\n", r.ID, r.Version, clean(r.Config), state, r.Counts)
	for _, s := range late.list() {
		text := s.Status
		if s.Reason != "" {
			text += ": " + s.Reason
		}
		_, err = fmt.Fprintf(w.stdout, "later %s: %s\n", clean(s.AgentID), clean(text))
	}
	return err
}

func printRolloutTargets(w io.Writer, targets []rolloutTarget) {
	rows := make([][]string, len(targets))
	for i, t := range targets {
		rows[i] = []string{t.AgentID, t.State, versionWord(t.PreviousVersion), strconv.FormatBool(t.RolledBack), oneLine(t.Reason)}
	}
	printTable(w, []string{"AGENT", "STATE", "BEFORE", "WENT BACK", "REASON"}, rows)
}

// rolloutOutcome is the exit code of a rollout that was followed.
func rolloutOutcome(r configRollout, late latecomers) error {
	c := r.Counts
	switch {
	case c.Total == 0:
		return &codedError{exitNoTargets, "no targets"}
	case r.State == "HALTED":
		return &codedError{exitFailed, fmt.Sprintf("halted: %s; muster configs rollout resume %s goes on, abort ends it", clean(r.StateReason), r.ID)}
	case r.State == "ROLLED_BACK", c.Failed > 0, c.Vanished > 0, late.failed() > 0:
		return &codedError{code: exitFailed}
	case r.State == "DONE" && c.Applied+late.applied() == c.Total:
		return nil
	}
	return &codedError{code: exitUnreached}
}
