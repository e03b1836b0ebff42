package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	rolloutDelay = 10 * time.Millisecond // many words are looked at together
	rolloutTick  = time.Second           // agents that go tell nobody: rollouts look for them once in that time …
	rolloutLook  = 10 * time.Second      // … and at every target
	backTime     = 30 * time.Minute      // a rollout that goes back waits at most that long for agents to do so …
	backWord     = 5 * time.Second       // … and that long for those that have not said a word of their offer
	outcomeRow   = 500                   // targets in one row
)

// run brings rollouts forward until ctx ends: one goroutine offers for all.
func (rs *configRollouts) run(ctx context.Context) error {
	t := time.NewTimer(rolloutTick)
	defer t.Stop()
	for {
		next := rolloutTick
		for _, r := range rs.list() {
			later, err := rs.step(ctx, r)
			if err != nil && ctx.Err() == nil {
				rs.c.log.Error("rollout not brought forward; it is tried again", "rollout", r.id, "config", r.config, "err", err)
			}
			if !later.IsZero() {
				next = min(next, max(time.Until(later), time.Millisecond))
			}
		}
		rs.readAgain(ctx)
		if err := rs.tidy(ctx); err != nil && ctx.Err() == nil {
			rs.c.log.Error("old rollouts not removed", "err", err)
		}
		t.Reset(next)
		select {
		case <-rs.woken:
			pause(ctx, rolloutDelay)
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// list returns the rollouts that have not ended.
func (rs *configRollouts) list() (all []*configRollout) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.open {
		all = append(all, r)
	}
	return all
}

// step looks where a rollout stands and does what is due: it halts it, ends it,
// or offers the version to whose turn it is. later is when to come again.
func (rs *configRollouts) step(ctx context.Context, r *configRollout) (later time.Time, err error) {
	rs.look(r)
	rs.tell(r)
	row := rs.rowOf(r)
	switch {
	case row == nil: // it ended meanwhile
		return later, nil
	case goesBack(row):
		return later, rs.endBack(ctx, r, row.State)
	case row.State != musterv1.ConfigRollout_RUNNING:
		return later, nil
	}
	if over := r.overBudget(row.Forgiven); over != "" {
		return later, rs.halt(ctx, r, over)
	}
	if r.through(func(a string) bool { return rs.c.fleet.expected(a, r.kind) }) {
		if why := r.inVain(); why != "" {
			return later, rs.halt(ctx, r, why)
		}
		return later, rs.finish(ctx, r)
	}
	later, err = rs.offer(ctx, r)
	why := rs.holdUp(r, time.Now())
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.holdUp = why
	return later, err
}

// look brings the places up to date: those that something was heard of, and
// those whose agent may have gone.
func (rs *configRollouts) look(r *configRollout) {
	head, now := rs.c.configs.catalog.head(r.config), time.Now()
	rs.mu.Lock()
	unsure, all := r.unsure, r.all || !r.known || r.head != head || now.Sub(r.looked) >= rolloutLook
	r.unsure, r.all = map[int]rolloutWord{}, false
	back := goesBack(r.row)
	rs.mu.Unlock()
	if all {
		r.looked = now
	}
	for i := range r.at {
		p := r.at[i]
		word, asked := unsure[i]
		if !all && !asked && !p.watched() {
			continue
		}
		rs.lookAt(r, i, &p, word, back, now)
		rs.mu.Lock()
		r.at[i] = p
		rs.mu.Unlock()
	}
	r.known, r.head = true, head
}

// lookAt brings one place up to date; heard is the agent's last word.
func (rs *configRollouts) lookAt(r *configRollout, i int, p *rolloutPlace, heard rolloutWord, back bool, now time.Time) {
	agent, was := r.targets[i], p.state
	p.left = !rs.concerned(r, agent)
	if !p.reached() {
		return
	}
	s := rs.statusOf(r, agent)
	word, gone := wordOf(s, r.version), rs.c.fleet.goneFor(agent, now)
	if back {
		if heard.state > word.state {
			word = heard
		}
		p.judgeBack(word, s, gone)
		p.mute, p.silent = false, now // when it is resumed it is asked again
		return
	}
	p.back = false
	if p.state == musterv1.RolloutTarget_OFFERED {
		p.hear(s, r.version, rs.c.configs.canTake(agent, r.kind), r.answer, now)
	}
	p.judge(word, gone, r.plan.vanish, now, !r.known)
	if was == musterv1.RolloutTarget_OFFERED && p.state != was && r.known {
		r.plan.endedLocked(i, now)
	}
}

// tell publishes where a rollout stands when that has changed, once in a while.
func (rs *configRollouts) tell(r *configRollout) {
	rs.mu.Lock()
	v, open := r.view(), rs.open[r.id] == r
	rs.mu.Unlock()
	now := time.Now()
	if !open || now.Before(r.tellAt) || proto.Equal(r.told.GetCounts(), v.Counts) && r.told.GetStateReason() == v.StateReason {
		return
	}
	r.told, r.tellAt = v, now.Add(rolloutTick)
	rs.c.feed.publish(&musterv1.Event{Kind: "rollout", Rollout: v})
}

// offer writes down whose turn it is, and then has configs offer the version.
func (rs *configRollouts) offer(ctx context.Context, r *configRollout) (later time.Time, err error) {
	rs.deciding.Lock() // nobody pauses it meanwhile
	defer rs.deciding.Unlock()
	row, now := rs.rowOf(r), time.Now()
	if row == nil || row.State != musterv1.ConfigRollout_RUNNING {
		return later, nil
	}
	agents, later := r.turn(now, row.Forgiven, func(a string) bool { return rs.c.configs.canTake(a, r.kind) })
	if len(agents) == 0 {
		return later, nil
	}
	if len(agents) > outcomeRow { // the others are due at once
		agents, later = agents[:outcomeRow], now
	}
	offers := &musterv1.RolloutOffers{AgentIds: agents}
	for _, a := range agents {
		previous := rs.statusOf(r, a).GetRunningVersion()
		if previous == r.version || !rs.c.configs.catalog.has(r.config, previous) {
			previous = 0 // nothing that it could be offered again
		}
		offers.Previous = append(offers.Previous, previous)
	}
	if err := rs.storeOffers(ctx, offeredKey(r.id, r.written), encode(offers)); err != nil {
		return later, fmt.Errorf("offers: %w", err) // the next try takes the place of what may be there
	}
	r.written++
	rs.mu.Lock()
	r.reach(offers)
	rs.mu.Unlock()
	rs.c.configs.look.wake(agents...)
	rs.wakeUp()
	return later, nil
}

// storeOffers writes down who is about to be reached. It reads again what the
// store is not sure of.
func (rs *configRollouts) storeOffers(ctx context.Context, key, value []byte) error {
	_, err := rs.c.store.Commit(ctx, store.Batch{Ops: []store.Op{{Space: spaceConfig, Key: key, Value: value}}})
	if !errors.Is(err, store.ErrUnknown) {
		return err
	}
	kvs, again := rs.c.store.Get(ctx, spaceConfig, key)
	if again == nil && bytes.Equal(kvs[0].Value, value) {
		return nil
	}
	return err
}

// halt has a running rollout reach nobody more, and waits until that is in force. It
// does nothing when another decision came first.
func (rs *configRollouts) halt(ctx context.Context, r *configRollout, why string) error {
	rs.deciding.Lock()
	defer rs.deciding.Unlock()
	row := rs.rowOf(r)
	if row == nil || row.State != musterv1.ConfigRollout_RUNNING {
		return nil
	}
	row.State, row.StateReason = musterv1.ConfigRollout_HALTED, why
	return rs.storeDecision(ctx, r, row)
}

// storeDecision stores a rollout that has not ended. One that goes back from now
// on remembers where its targets stood. deciding is held.
func (rs *configRollouts) storeDecision(ctx context.Context, r *configRollout, row *musterv1.ConfigRollout) error {
	if goesBack(row) {
		if err := rs.storeOutcome(ctx, r, false); err != nil {
			return err
		}
	}
	rs.c.log.Info("rollout decided", "rollout", r.id, "config", r.config, "state", row.State.String(), "reason", row.StateReason)
	return rs.c.commitWanted(ctx, putRollout(row))
}

// rowOf returns a copy of the row of a rollout that has not ended, or nil.
func (rs *configRollouts) rowOf(r *configRollout) *musterv1.ConfigRollout {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.open[r.id] != r {
		return nil
	}
	return proto.CloneOf(r.row)
}

func putRollout(row *musterv1.ConfigRollout) store.Op {
	return store.Op{Space: spaceConfig, Key: rolloutKey(row.Id), Value: encode(row)}
}

// finish moves the bindings to the version that everybody has, in one commit
// with the end of the rollout.
func (rs *configRollouts) finish(ctx context.Context, r *configRollout) error {
	return rs.end(ctx, r, musterv1.ConfigRollout_RUNNING, musterv1.ConfigRollout_DONE, func(head *musterv1.Config) {
		for _, b := range head.Bindings {
			if isConcerned(b, r.groups) {
				b.Version = r.version
			}
		}
	})
}

// endBack ends a rollout that went back once those reached have done so, as far
// as they can be reached.
func (rs *configRollouts) endBack(ctx context.Context, r *configRollout, from musterv1.ConfigRollout_State) error {
	now := time.Now()
	rs.mu.Lock()
	since := now.Sub(r.backFrom)
	rs.mu.Unlock()
	for i := range r.at {
		if since < backTime && rs.hasToGoBack(r, i, since, now) {
			return nil
		}
	}
	to := musterv1.ConfigRollout_ABORTED
	if from == musterv1.ConfigRollout_HALTED {
		to = musterv1.ConfigRollout_ROLLED_BACK
	}
	return rs.end(ctx, r, from, to, nil)
}

// hasToGoBack reports whether to wait for a target: it has a version to go back
// to, has not done so, and has not failed to.
func (rs *configRollouts) hasToGoBack(r *configRollout, i int, since time.Duration, now time.Time) bool {
	p := r.at[i]
	asked := p.state == musterv1.RolloutTarget_OFFERED && since < backWord // it may be about to take it
	if p.left || !p.reached() || p.previous == 0 || p.back && !asked {
		return false
	}
	s := rs.statusOf(r, r.targets[i])
	failed := s.GetVersion() == p.previous && s.GetStatus() == musterv1.ConfigStatus_FAILED
	return !failed && rs.c.fleet.goneFor(r.targets[i], now) < r.plan.vanish
}

// end ends a rollout in state from: where its targets stood first, then, in one
// commit, the row and the head of the config, which move may change.
func (rs *configRollouts) end(ctx context.Context, r *configRollout, from, to musterv1.ConfigRollout_State, move func(*musterv1.Config)) error {
	rs.deciding.Lock()
	defer rs.deciding.Unlock()
	row := rs.rowOf(r)
	if row == nil || row.State != from {
		return nil
	}
	if err := rs.storeOutcome(ctx, r, true); err != nil {
		return err
	}
	row.State, row.EndTime = to, rs.c.nowStamp()
	rs.mu.Lock()
	row.Counts = r.shownCounts(true)
	rs.mu.Unlock()
	if to == musterv1.ConfigRollout_DONE && row.Counts.Total == 0 {
		row.StateReason = "no agent has the config by these bindings"
	}
	op := putRollout(row)
	_, err := rs.c.configs.update(ctx, r.config, func(head *musterv1.Config) error {
		if move != nil {
			move(head)
		}
		if head.RolloutId == r.id {
			head.RolloutId = ""
		}
		return nil
	}, op)
	if status.Code(err) == codes.NotFound { // its config is gone
		return rs.c.commitWanted(ctx, op)
	}
	return err
}

// storeOutcome writes where the targets stand.
func (rs *configRollouts) storeOutcome(ctx context.Context, r *configRollout, ended bool) error {
	var rows []*musterv1.RolloutOutcome
	rs.mu.Lock()
	for i, p := range r.at {
		if p.left {
			continue
		}
		if len(rows) == 0 || len(rows[len(rows)-1].Targets) == outcomeRow {
			rows = append(rows, &musterv1.RolloutOutcome{})
		}
		last := rows[len(rows)-1]
		t := r.target(i, ended)
		t.Reason = cutText(t.Reason, 300)
		last.Targets = append(last.Targets, t)
	}
	rs.mu.Unlock()
	for n, row := range rows {
		op := store.Op{Space: spaceBulk, Key: outcomeKey(r.id, n), Value: encode(row)}
		if _, err := rs.c.store.Commit(ctx, store.Batch{Ops: []store.Op{op}}); err != nil {
			return fmt.Errorf("outcome: %w", err)
		}
	}
	return rs.dropRows(ctx, spaceBulk, outcomePrefix+r.id+"/", outcomeKey(r.id, len(rows)-1)) // of an earlier halt
}
