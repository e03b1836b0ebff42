package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"
)

// latecomers are the targets that a rollout did not reach before it was done, by
// agent, with what became of them. The bindings name the version by then, so each
// gets it when it comes.
type latecomers map[string]configStatus

// arrived says that the agent runs what was wanted.
func (s configStatus) arrived() bool {
	return s.Status == "APPLIED" && s.RunningVersion == s.WantedVersion && s.WantedVersion > 0
}

func (l latecomers) applied() (n int) {
	for _, s := range l {
		if s.arrived() {
			n++
		}
	}
	return n
}

func (l latecomers) failed() (n int) {
	for _, s := range l {
		if s.Status == "FAILED" {
			n++
		}
	}
	return n
}

// list is by agent.
func (l latecomers) list() []configStatus {
	list := []configStatus{}
	for _, id := range slices.Sorted(maps.Keys(l)) {
		list = append(list, l[id])
	}
	return list
}

// awaitLate waits until each target that the rollout did not reach has tried its
// version, or shall not have it any more: it is forgotten, or other bindings hold.
func (w *watcher) awaitLate(ctx context.Context, r configRollout) (latecomers, error) {
	_, targets, err := w.client.rolloutTargets(ctx, r.ID, url.Values{"state": {"WAITING,OFFERED,SKIPPED"}})
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, t := range targets {
		missing[t.AgentID] = true
	}
	defer w.progress.clear()
	late := latecomers{}
	for answered := time.Now(); len(missing) > 0; {
		err := w.lookLate(ctx, r, missing, late)
		switch {
		case ctx.Err() != nil:
			return late, ctx.Err()
		case err != nil && (isAnswer(err) || time.Since(answered) > patient):
			return late, err
		case err != nil:
			w.progress.show(err.Error() + "; trying again")
		case len(missing) > 0:
			answered = time.Now()
			w.progress.show(fmt.Sprintf("%s; waiting for %s", r.State, clean(namesOf(slices.Sorted(maps.Keys(missing))))))
		}
		if len(missing) == 0 {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return late, nil
}

// lookLate takes from missing who is through, and notes how in late.
func (w *watcher) lookLate(ctx context.Context, r configRollout, missing map[string]bool, late latecomers) error {
	statuses, err := rowsOf[configStatus](ctx, w.client, configPath(r.Config, "/status"), "statuses", 0)
	if err != nil {
		return err
	}
	here := map[string]bool{}
	for _, s := range statuses {
		if !missing[s.AgentID] || s.WantedVersion != r.Version {
			continue
		}
		here[s.AgentID] = true
		if s.Version == r.Version && s.Status == "FAILED" || s.RunningVersion == r.Version && s.arrived() {
			late[s.AgentID] = s
			delete(missing, s.AgentID)
		}
	}
	for id := range missing {
		if !here[id] {
			late[id] = configStatus{AgentID: id, Status: "NOT_WANTED", Reason: fmt.Sprintf("version %d is not wanted of it any more", r.Version)}
			delete(missing, id)
		}
	}
	return nil
}
