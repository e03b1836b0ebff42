package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// submit checks a command, resolves its targets, and stores both. When it
// returns the command cannot be lost, and the ledger has it.
func (c *Coordinator) submit(ctx context.Context, req *musterv1.Command, key string) (*musterv1.Command, error) {
	targets, err := c.targetsOf(ctx, req)
	if err != nil {
		return nil, err
	}
	once, err := newOnceKey(ctx, "CreateCommand", key, req)
	if err != nil {
		return nil, err
	}
	if id, err := c.earlier(ctx, once); err != nil || id != "" {
		return c.again(ctx, id, err)
	}
	cmd := proto.CloneOf(req)
	now := c.cfg.Now()
	if cmd.Id, err = c.ids.next(now); err != nil {
		return nil, err
	}
	if cmd.Timeout == nil {
		cmd.Timeout = durationpb.New(defaultTime)
	}
	if cmd.ExpiresIn == nil {
		cmd.ExpiresIn = durationpb.New(defaultExpiry)
	}
	if cmd.WhenOffline == 0 {
		cmd.WhenOffline = musterv1.Command_QUEUE
	}
	if c.cfg.CancelOffline {
		cmd.WhenOffline = musterv1.Command_CANCEL
	}
	if len(cmd.Input) == 0 {
		cmd.Input = []byte("{}")
	}
	cmd.CreateTime = timestamppb.New(now)
	cmd.ExpireTime = timestamppb.New(now.Add(cmd.ExpiresIn.AsDuration()))

	if proto.Size(cmd.Target) > maxKeptList { // the list itself is stored apart
		cmd.Target.Agents = nil
	}

	mark, all, done := c.sentAtOnce(cmd, targets)
	defer done()
	settled := c.settledAtOnce(cmd, targets)
	rev, err := c.storeCommand(ctx, cmd, targets, settled, mark, once)
	if errors.Is(err, store.ErrConflict) { // the same key, at the same time
		id, err := c.earlier(ctx, once)
		return c.again(ctx, id, err)
	}
	if err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	if all && len(settled) == 0 {
		if err := c.openAtOnce(cmd, targets, rev); err != nil {
			return nil, err
		}
	}
	if err := c.ledger.await(ctx, rev); err != nil {
		return nil, fmt.Errorf("command %s is stored, but: %w", cmd.Id, err)
	}
	return c.command(ctx, cmd.Id)
}

// targetsOf checks a command and resolves its targets.
func (c *Coordinator) targetsOf(ctx context.Context, req *musterv1.Command) ([]string, error) {
	if err := checkCommand(req); err != nil {
		return nil, err
	}
	targets, err := c.resolve(ctx, req.Target)
	if err != nil {
		return nil, err
	}
	if _, err := newPlan("rollout", req.Rollout, len(targets)); err != nil {
		return nil, err
	}
	if !c.fleet.anyRuns(targets, req.Type) {
		return nil, noTargets("type", fmt.Sprintf("none of the %d targets has the command type %q", len(targets), req.Type))
	}
	return targets, nil
}

// again is the answer to a request that was made before.
func (c *Coordinator) again(ctx context.Context, id string, err error) (*musterv1.Command, error) {
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, fmt.Errorf("command: %w", store.ErrConflict)
	}
	return c.command(ctx, id)
}

// settledAtOnce returns what to store of targets that the command need not be sent to:
// REJECTED where the agent takes no commands, and CANCELLED where it is OFFLINE,
// if the command does not want to wait for it.
func (c *Coordinator) settledAtOnce(cmd *musterv1.Command, targets []string) []store.Op {
	var ts []*musterv1.Target
	settle := func(agents []string, to musterv1.Target_State, reason string) {
		for _, agent := range agents {
			ts = append(ts, decided(cmd.Id, agent, to, reason, cmd.CreateTime))
		}
	}
	refusing, rest := c.fleet.refusing(targets)
	settle(refusing, musterv1.Target_REJECTED, noCommands)
	if cmd.WhenOffline == musterv1.Command_CANCEL {
		settle(c.fleet.offline(rest), musterv1.Target_CANCELLED, "the agent was offline when the command was submitted")
	}
	ops, _ := packOps(cmd.Id, ts)
	return ops
}

// storeCommand writes the target lists first and then, in one commit, the
// command and mark: it is there whole or not at all. A command of one commit
// needs no draft row.
func (c *Coordinator) storeCommand(ctx context.Context, cmd *musterv1.Command, targets []string, ops, mark []store.Op, once onceKey) (store.Rev, error) {
	for n, list := range packed(targets) {
		ops = append(ops, store.Op{Kind: store.PutIfAbsent, Space: spaceBulk, Key: targetsKey(cmd.Id, n),
			Value: encode(&musterv1.TargetList{AgentIds: list})})
	}
	head := []store.Op{
		{Kind: store.Put, Space: spaceHistory, Key: cmdKey(cmd.Id), Value: encode(cmd), If: store.Absent()},
		{Kind: store.Put, Space: spaceHistory, Key: openKey(cmd.Id)},
	}
	head = append(head, mark...)
	if once.row != nil {
		head = append(head, once.op(cmd.Id, cmd.CreateTime))
	}
	rest, err := c.storeAhead(ctx, ops, store.Op{Kind: store.Put, Space: spaceHistory, Key: draftKey(cmd.Id)}, sizeOf(head))
	if err != nil {
		return 0, err
	}
	res, err := c.store.Commit(ctx, store.Batch{Ops: append(rest, head...)})
	return res.Rev, err
}

// storeAhead commits what of ops has no room in one commit with four others of
// reserve bytes, and returns what has. When it commits anything, the row draft is
// there from the first of these commits to the one of what it returns.
func (c *Coordinator) storeAhead(ctx context.Context, ops []store.Op, draft store.Op, reserve int) (rest []store.Op, err error) {
	batches := split(ops, draft, reserve+len(draft.Key))
	for _, b := range batches[:len(batches)-1] {
		if _, err := c.store.Commit(ctx, store.Batch{Ops: b}); err != nil {
			return nil, err
		}
	}
	rest = batches[len(batches)-1]
	if len(batches) > 1 {
		rest = append(rest, store.Op{Kind: store.Delete, Space: draft.Space, Key: draft.Key})
	}
	return rest, nil
}

// split cuts ops into batches that keep the store's limits, the last one with
// room for reserve bytes and five ops. If there are several, draft goes first.
func split(ops []store.Op, draft store.Op, reserve int) [][]store.Op {
	room := func(b []store.Op, o store.Op) bool {
		return len(b) < store.MaxOps-5 && sizeOf(b)+sizeOf([]store.Op{o})+reserve+len(draft.Key) <= store.MaxBytes
	}
	batches := [][]store.Op{nil}
	for _, o := range ops {
		if b := batches[len(batches)-1]; !room(b, o) {
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = append(batches[len(batches)-1], o)
	}
	if len(batches) > 1 {
		batches[0] = append(batches[0], draft)
	}
	return batches
}

func sizeOf(ops []store.Op) (n int) {
	for _, o := range ops {
		n += len(o.Key) + len(o.Value)
	}
	return n
}

// packed cuts a target list into pieces that fit into one row each.
func packed(targets []string) (lists [][]string) {
	const room = store.MaxValue - 4096
	start, size := 0, 0
	for i, t := range targets {
		if size+len(t)+4 > room {
			lists = append(lists, targets[start:i])
			start, size = i, 0
		}
		size += len(t) + 4
	}
	return append(lists, targets[start:])
}

// resolve turns a selector into a sorted list of known agents.
func (c *Coordinator) resolve(ctx context.Context, sel *musterv1.TargetSelector) ([]string, error) {
	if sel.GetWhere() != "" {
		return c.matching(ctx, sel.Where)
	}
	if sel.GetAll() {
		ids := c.fleet.ids()
		if len(ids) == 0 {
			return nil, noTargets("target.all", "no agent is known yet")
		}
		if len(ids) > maxTargets {
			return nil, invalid("target.all", "%d agents, at most %d a command", len(ids), maxTargets)
		}
		return slices.Clone(ids), nil
	}
	if len(sel.GetGroups()) > 0 {
		return c.membersOf(sel.Groups)
	}
	ids := slices.Clone(sel.GetAgents())
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if unknown := c.fleet.unknown(ids); len(unknown) > 0 {
		return nil, unknownAgents(sel.Agents, unknown)
	}
	return ids, nil
}

// membersOf returns the known agents that are in any of these groups, sorted.
func (c *Coordinator) membersOf(groups []string) (ids []string, err error) {
	var f faults
	for i, name := range groups {
		in, ok := c.groups.members(name)
		if !ok {
			f.add(fmt.Sprintf("target.groups[%d]", i), "group %.150q is not known", name)
		}
		ids = append(ids, in...)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	switch {
	case len(ids) == 0:
		return nil, noTargets("target.groups", "no known agent is in any of them")
	case len(ids) > maxTargets:
		return nil, invalid("target.groups", "%d agents, at most %d a command", len(ids), maxTargets)
	}
	return ids, nil
}

// command returns a command as it is now, open or ended.
func (c *Coordinator) command(ctx context.Context, id string) (*musterv1.Command, error) {
	if cmd, _, open := c.ledger.command(id); open {
		return cmd, nil
	}
	kvs, err := c.store.Get(ctx, spaceHistory, cmdKey(id), sumKey(id), ctlKey(id))
	if err != nil {
		return nil, err
	}
	if kvs[0].Rev == 0 {
		return nil, notFound("command", id)
	}
	return stored(kvs[0], kvs[1], kvs[2])
}

// stored makes a command from its rows; the last two may be absent.
func stored(head, summary, control store.KV) (*musterv1.Command, error) {
	cmd, sum := &musterv1.Command{}, &musterv1.CommandSummary{State: musterv1.Command_OPEN}
	if err := decode(head.Key, head.Value, cmd); err != nil {
		return nil, err
	}
	if summary.Rev != 0 {
		if err := decode(summary.Key, summary.Value, sum); err != nil {
			return nil, err
		}
	}
	ctl := &musterv1.CommandControl{}
	if err := decode(control.Key, control.Value, ctl); err != nil {
		return nil, err
	}
	if ctl.State != musterv1.Command_OPEN {
		cmd.StateReason = ctl.Reason
	}
	return finish(cmd, sum), nil
}

// PreviewCommand says who would get a command, and what is wrong with it.
func (s *commandService) PreviewCommand(ctx context.Context, req *musterv1.PreviewCommandRequest) (*musterv1.PreviewCommandResponse, error) {
	after, err := pageStart(req.PageToken, "preview")
	if err != nil {
		return nil, err
	}
	targets, err := s.c.targetsOf(ctx, req.Command)
	if err != nil {
		return nil, err
	}
	resp := &musterv1.PreviewCommandResponse{Total: uint32(len(targets)), Fleet: uint32(s.c.fleet.size())}
	size := pageSize(req.PageSize)
	for _, id := range targets {
		a := s.c.fleet.facts(id)
		if a.GetStatus() == musterv1.Agent_ONLINE {
			resp.Online++
		}
		if id <= after {
			continue
		}
		if len(resp.Targets) < size {
			resp.Targets = append(resp.Targets, &musterv1.Target{AgentId: id, Reason: a.GetStatus().String()})
		} else {
			resp.NextPageToken = pageToken("preview", resp.Targets[size-1].AgentId)
		}
	}
	return resp, nil
}
