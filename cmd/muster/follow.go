package main

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
)

// follow waits until each target that can be reached is final, or the command
// is halted and what it had sent is final. Before it returns it has shown the
// last counts.
func (r *runner) follow(ctx context.Context, raw json.RawMessage, cmd command) (json.RawMessage, command, error) {
	const (
		round = 500 * time.Millisecond // how often progress is shown
		quiet = 2 * time.Second        // without progress: then ask who cannot be reached
	)
	answered, moved := time.Now(), time.Now()
	r.progress.show(stateLine(cmd))
	for !cmd.ended() {
		asked := time.Now()
		nextRaw, next, err := r.client.command(ctx, cmd.ID, round)
		switch {
		case ctx.Err() != nil:
			return raw, cmd, ctx.Err()
		case err != nil && (isAnswer(err) || time.Since(answered) > patient):
			return raw, cmd, err
		case err != nil:
			r.progress.show(err.Error() + "; trying again")
		default:
			if next.Counts != cmd.Counts || next.State != cmd.State {
				moved = time.Now()
			}
			answered, raw, cmd = time.Now(), nextRaw, next
			r.progress.show(stateLine(cmd))
			if cmd.halted() && cmd.Counts.flying() == 0 {
				return raw, cmd, nil
			}
			if !r.waitOffline && time.Since(moved) > quiet {
				if waiting, err := r.reachable(ctx, cmd); err == nil && waiting == 0 {
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
	return raw, cmd, nil
}

// reachable counts the open targets of a command from which something may still
// come soon: their agents are not offline, and, if nothing was sent, may be sent to.
func (r *runner) reachable(ctx context.Context, cmd command) (int, error) {
	_, targets, err := r.client.targets(ctx, cmd.ID, url.Values{"state": {"QUEUED,SENT,RECEIVED,RUNNING"}})
	if err != nil {
		return 0, err
	}
	agents, err := r.client.agents(ctx)
	if err != nil {
		return 0, err
	}
	away, held := map[string]bool{}, map[string]bool{}
	for _, a := range agents {
		away[a.ID], held[a.ID] = a.Status == "OFFLINE", a.Maintenance
	}
	n := 0
	for _, t := range targets {
		unsent := t.State == "QUEUED" && (cmd.halted() || held[t.AgentID])
		if !t.final() && !away[t.AgentID] && !unsent {
			n++
		}
	}
	return n, nil
}
