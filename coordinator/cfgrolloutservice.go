package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configRolloutService answers for the resource rollouts.
type configRolloutService struct {
	musterv1.UnimplementedConfigRolloutsServer
	c    *Coordinator
	quit <-chan struct{} // ends long polls
}

// CreateConfigRollout starts a rollout to the agents that have the config by the
// bindings concerned now, and supersedes the one in progress. When it returns,
// the rollout cannot be lost.
func (s *configRolloutService) CreateConfigRollout(ctx context.Context, req *musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	rs := s.c.rollouts
	row, err := rolloutRow(req.Rollout)
	if err != nil {
		return nil, err
	}
	once, err := newOnceKey(ctx, "CreateConfigRollout", req.IdempotencyKey, req.Rollout)
	if err != nil {
		return nil, err
	}
	if !req.DryRun {
		if id, err := s.c.earlier(ctx, once); err != nil || id != "" {
			return s.again(ctx, id, err)
		}
	}
	rs.deciding.Lock()
	defer rs.deciding.Unlock()
	head := rs.c.configs.catalog.head(row.Config)
	targets, err := rs.resolve(row, head)
	if err != nil {
		return nil, err
	}
	n := uint32(len(targets))
	row.Counts = &musterv1.RolloutCounts{Total: n, Waiting: n}
	if req.DryRun {
		return row, nil
	}
	row.CreateTime = s.c.nowStamp()
	if row.Id, err = s.c.ids.next(row.CreateTime.AsTime()); err != nil {
		return nil, err
	}
	err = rs.store(ctx, row, head, targets, once)
	if errors.Is(err, store.ErrConflict) { // the same key, at the same time
		id, err := s.c.earlier(ctx, once)
		return s.again(ctx, id, err)
	}
	switch {
	case err == nil:
		return s.rollout(ctx, row.Id)
	case isStatus(err):
		return nil, err
	default:
		return nil, fmt.Errorf("rollout: %w", err)
	}
}

// again is the answer to a request that was made before.
func (s *configRolloutService) again(ctx context.Context, id string, err error) (*musterv1.ConfigRollout, error) {
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, fmt.Errorf("rollout: %w", store.ErrConflict)
	}
	return s.rollout(ctx, id)
}

// rolloutRow checks what an operator says of a rollout, and makes its row.
func rolloutRow(m *musterv1.ConfigRollout) (*musterv1.ConfigRollout, error) {
	var f faults
	if m == nil {
		return nil, invalid("rollout", "a rollout is needed")
	}
	if m.Id != "" || m.State != 0 || m.StateReason != "" || m.Counts != nil || m.CreateTime != nil || m.EndTime != nil || m.Forgiven != 0 {
		f.add("rollout", "id, state, counts and the times are set by the coordinator")
	}
	f.configName("config", m.Config)
	if m.Version < 1 {
		f.add("version", "version %d, want one that there is, from 1 on", m.Version)
	}
	if len(m.Groups) > maxBindings {
		f.add("groups", "%d groups, at most %d", len(m.Groups), maxBindings)
	}
	if len(m.Note) > maxNote {
		f.add("note", "%d bytes, at most %d", len(m.Note), maxNote)
	}
	if p := m.Plan; p != nil {
		f.pause("plan.pause_between", p.PauseBetween, maxExpiry)
		f.duration("plan.vanish_after", p.VanishAfter, maxExpiry)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	groups := slices.Clone(m.Groups)
	slices.Sort(groups)
	return &musterv1.ConfigRollout{Config: m.Config, Version: m.Version, Groups: slices.Compact(groups), Plan: proto.CloneOf(m.Plan),
		KeepOnHalt: m.KeepOnHalt, Note: m.Note, State: musterv1.ConfigRollout_RUNNING}, nil
}

// resolve returns the agents that have the config (nil: there is none) by the
// bindings concerned, sorted, and what is wrong with the rollout in the light of
// them.
func (rs *configRollouts) resolve(row *musterv1.ConfigRollout, head *musterv1.Config) (targets []string, err error) {
	if head == nil {
		return nil, notFound("config", row.Config)
	}
	var f faults
	if !rs.c.configs.catalog.has(row.Config, row.Version) {
		f.add("version", "config %q has no version %d", row.Config, row.Version)
	}
	for i, g := range row.Groups {
		if !slices.ContainsFunc(head.Bindings, func(b *musterv1.Binding) bool { return b.Group == g }) {
			f.add(fmt.Sprintf("groups[%d]", i), "config %q is not bound to group %.150q", row.Config, g)
		}
	}
	if len(head.Bindings) == 0 {
		f.add("config", "config %q is bound to nobody; bind it first", row.Config)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	for _, id := range rs.c.fleet.ids() {
		if isConcerned(bindingOf(head.Bindings, id, rs.c.groups.of(id)), row.Groups) {
			targets = append(targets, id)
		}
	}
	if len(targets) > maxTargets {
		return nil, invalid("config", "%d agents, at most %d a rollout", len(targets), maxTargets)
	}
	_, err = rolloutPlan(row.Plan, len(targets))
	return targets, err
}

// store writes the target lists first and then, in one commit, the rollout, the
// head that names it, and the end of the one that it supersedes. The targets are
// those of the bindings of seen, and of no others.
func (rs *configRollouts) store(ctx context.Context, row *musterv1.ConfigRollout, seen *musterv1.Config, targets []string, once onceKey) error {
	var ops []store.Op
	for n, list := range packed(targets) {
		ops = append(ops, store.Op{Space: spaceBulk, Key: targetsKey(row.Id, n), Value: encode(&musterv1.TargetList{AgentIds: list})})
	}
	head := proto.CloneOf(row)
	head.Counts = nil
	last := []store.Op{putRollout(head)}
	if once.row != nil {
		last = append(last, once.op(row.Id, row.CreateTime))
	}
	old, err := rs.supersede(ctx, row)
	if err != nil {
		return err
	}
	last = append(last, old...)
	rest, err := rs.c.storeAhead(ctx, ops, store.Op{Space: spaceHistory, Key: draftKey(row.Id)}, sizeOf(last)+store.MaxValue) // with room for the head of the config
	if err != nil {
		return err
	}
	rs.mu.Lock()
	rs.fresh[row.Id] = targets
	rs.mu.Unlock()
	defer func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		delete(rs.fresh, row.Id)
	}()
	_, err = rs.c.configs.update(ctx, row.Config, func(cfg *musterv1.Config) error {
		if !rs.c.configs.catalog.has(row.Config, row.Version) { // removed meanwhile, as one of many old ones
			return invalid("version", "config %q has no version %d", row.Config, row.Version)
		}
		if !sameBindings(cfg.Bindings, seen.Bindings) {
			return fail(codes.Aborted, "CONFIG_CHANGED", fmt.Sprintf("config %q: its bindings were changed meanwhile; look at them, and start the rollout again", row.Config))
		}
		cfg.RolloutId = row.Id
		return nil
	}, append(rest, last...)...)
	return err
}

// supersede returns the writes that end the rollout in progress of row's config.
// deciding is held.
func (rs *configRollouts) supersede(ctx context.Context, row *musterv1.ConfigRollout) (ops []store.Op, err error) {
	end := func(old *musterv1.ConfigRollout) {
		old.State, old.EndTime = musterv1.ConfigRollout_SUPERSEDED, row.CreateTime
		old.StateReason = fmt.Sprintf("by rollout %s of version %d", row.Id, row.Version)
		ops = append(ops, putRollout(old))
	}
	rs.mu.Lock()
	r := rs.of[row.Config]
	rs.mu.Unlock()
	if r != nil {
		if err := rs.storeOutcome(ctx, r, true); err != nil {
			return nil, err
		}
		old := rs.rowOf(r)
		rs.mu.Lock()
		old.Counts = r.shownCounts(true)
		rs.mu.Unlock()
		end(old)
	}
	unread, err := rs.notInForce(ctx, row.Config, r)
	if unread != nil {
		end(unread)
	}
	return ops, err
}

// notInForce returns the rollout in progress that the store names for a config,
// when it is not r, the one in force: its targets could not be read, or it is
// stored and nobody knows yet.
func (rs *configRollouts) notInForce(ctx context.Context, config string, r *configRollout) (*musterv1.ConfigRollout, error) {
	head, _, err := rs.c.configs.stored(ctx, config)
	if id := head.GetRolloutId(); err != nil || id == "" || r != nil && r.id == id {
		return nil, err
	}
	kvs, err := rs.c.store.Get(ctx, spaceConfig, rolloutKey(head.RolloutId))
	if err != nil || kvs[0].Rev == 0 {
		return nil, err
	}
	row := &musterv1.ConfigRollout{}
	if err := decode(kvs[0].Key, kvs[0].Value, row); err != nil || row.EndTime != nil {
		return nil, nil // one that cannot be read keeps nobody from the next
	}
	return row, nil
}

// rollout returns a rollout as it is now, open or ended.
func (s *configRolloutService) rollout(ctx context.Context, id string) (*musterv1.ConfigRollout, error) {
	if r := s.c.rollouts.find(id); r != nil {
		s.c.rollouts.mu.Lock()
		defer s.c.rollouts.mu.Unlock()
		return r.view(), nil
	}
	kvs, err := s.c.store.Get(ctx, spaceConfig, rolloutKey(id))
	if err != nil {
		return nil, err
	}
	if kvs[0].Rev == 0 {
		return nil, notFound("rollout", id)
	}
	row := &musterv1.ConfigRollout{}
	if err := decode(kvs[0].Key, kvs[0].Value, row); err != nil {
		return nil, err
	}
	if row.EndTime == nil && row.StateReason == "" {
		row.StateReason = "its agents could not be read; it is tried again"
	}
	return row, nil
}

// find returns a rollout that has not ended, or nil.
func (rs *configRollouts) find(id string) *configRollout {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.open[id]
}

func (s *configRolloutService) GetConfigRollout(ctx context.Context, req *musterv1.GetConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	if err := checkRolloutID(req.Id); err != nil {
		return nil, err
	}
	if r := s.c.rollouts.find(req.Id); r != nil && req.Wait.AsDuration() > 0 {
		t := time.NewTimer(req.Wait.AsDuration())
		defer t.Stop()
		select {
		case <-r.ended:
		case <-t.C:
		case <-s.quit:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s.rollout(ctx, req.Id)
}

// checkRolloutID refuses at once what was never made.
func checkRolloutID(id string) error {
	if !isCommandID(id) {
		return notFound("rollout", id)
	}
	return nil
}

func (s *configRolloutService) PauseConfigRollout(ctx context.Context, req *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return s.control(ctx, req, musterv1.ConfigRollout_PAUSED, "paused")
}

// ResumeConfigRollout also lifts HALTED, while those reached go back: they are
// offered the version again.
func (s *configRolloutService) ResumeConfigRollout(ctx context.Context, req *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return s.control(ctx, req, musterv1.ConfigRollout_RUNNING, "")
}

func (s *configRolloutService) AbortConfigRollout(ctx context.Context, req *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return s.control(ctx, req, musterv1.ConfigRollout_ABORTED, "aborted")
}

// control stores what an operator decides about a rollout, and waits until it is
// in force.
func (s *configRolloutService) control(ctx context.Context, req *musterv1.ControlConfigRolloutRequest, to musterv1.ConfigRollout_State, word string) (*musterv1.ConfigRollout, error) {
	if len(req.Reason) > maxReason {
		return nil, invalid("reason", "%d bytes, at most %d", len(req.Reason), maxReason)
	}
	if err := checkRolloutID(req.Id); err != nil {
		return nil, err
	}
	rs := s.c.rollouts
	rs.deciding.Lock()
	defer rs.deciding.Unlock()
	r := rs.find(req.Id)
	if r == nil {
		row, err := s.rollout(ctx, req.Id)
		if err != nil {
			return nil, err
		}
		if row.EndTime == nil {
			return nil, fail(codes.Unavailable, "ROLLOUT_NOT_READ", fmt.Sprintf("rollout %s is in progress, but its agents could not be read; try again, or start another one in its place", req.Id))
		}
		return nil, fail(codes.FailedPrecondition, "ROLLOUT_ENDED", fmt.Sprintf("rollout %s has ended: it is %s", req.Id, row.State))
	}
	row := rs.rowOf(r)
	switch now := row.State; {
	case now == to:
		return s.rollout(ctx, req.Id) // asked twice: the answer is the same
	case now == musterv1.ConfigRollout_ABORTED:
		return nil, fail(codes.FailedPrecondition, "ROLLOUT_ENDED", fmt.Sprintf("rollout %s is aborted: those reached go back", req.Id))
	case now == musterv1.ConfigRollout_HALTED && to == musterv1.ConfigRollout_PAUSED:
		return nil, fail(codes.FailedPrecondition, "ROLLOUT_HALTED", fmt.Sprintf("rollout %s is halted: nothing more is offered already", req.Id))
	case now == musterv1.ConfigRollout_HALTED && to == musterv1.ConfigRollout_RUNNING:
		rs.mu.Lock()
		n := r.counts()
		rs.mu.Unlock()
		row.Forgiven = n.Failed + n.Vanished
	}
	row.State, row.StateReason = to, req.Reason
	if row.StateReason == "" {
		row.StateReason = word
	}
	if err := rs.storeDecision(ctx, r, row); err != nil {
		return nil, err
	}
	return s.rollout(ctx, req.Id)
}
