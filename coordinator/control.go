package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (c *Coordinator) controlOp(id string, to musterv1.Command_State, reason string, forgiven int) store.Op {
	row := &musterv1.CommandControl{State: to, Reason: reason, Time: c.nowStamp(), Forgiven: uint32(forgiven)}
	return store.Op{Kind: store.Put, Space: spaceHistory, Key: ctlKey(id), Value: encode(row)}
}

// control stores what an operator decides about an open command, and waits
// until it is in force. change says what the decision is, given what holds now.
func (c *Coordinator) control(ctx context.Context, id string, change func(now musterv1.Command_State, failures int) (store.Op, error)) (*musterv1.Command, error) {
	c.deciding.Lock() // one decision at a time
	defer c.deciding.Unlock()
	oc := c.ledger.get(id)
	if oc == nil {
		if _, err := c.command(ctx, id); err != nil {
			return nil, err
		}
		return nil, fail(codes.FailedPrecondition, "COMMAND_ENDED", fmt.Sprintf("command %s has ended", id))
	}
	op, err := change(c.ledger.controlOf(oc))
	if err != nil || op.Key == nil {
		return nil, err
	}
	res, err := c.store.Commit(ctx, store.Batch{Ops: []store.Op{op}})
	if err != nil {
		return nil, err
	}
	if err := c.ledger.await(ctx, res.Rev); err != nil {
		return nil, err
	}
	return c.command(ctx, id)
}

// recordHalt stores that the failure budget halted a command. In memory it is
// halted already.
func (c *Coordinator) recordHalt(oc *openCommand) {
	c.ledger.mu.Lock()
	reason, forgiven := oc.reason, oc.plan.forgiven
	c.ledger.mu.Unlock()
	c.log.Warn("command halted", "cmd", oc.cmd.Id, "reason", reason)
	c.batch.must(c.insist(&write{ops: fixed(c.controlOp(oc.cmd.Id, musterv1.Command_HALTED, reason, forgiven))}))
}

// controlOf returns a command's state and the failures that count against it.
func (l *ledger) controlOf(oc *openCommand) (musterv1.Command_State, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if oc.plan == nil {
		return oc.control, 0
	}
	return oc.control, oc.failuresLocked() + oc.plan.forgiven
}

// setControl puts a stored decision in force. A cancelled command stays so.
func (l *ledger) setControl(id string, row *musterv1.CommandControl) *openCommand {
	l.mu.Lock()
	defer l.mu.Unlock()
	oc := l.open[id]
	if oc == nil || oc.control == musterv1.Command_CANCELLED {
		return nil
	}
	oc.control, oc.reason = row.State, row.Reason
	if oc.plan != nil {
		oc.plan.forgiven = int(row.Forgiven)
	}
	return oc
}

// applyControl acts on a stored decision.
func (c *Coordinator) applyControl(kv store.KV) (*musterv1.Event, error) {
	row := &musterv1.CommandControl{}
	if err := decode(kv.Key, kv.Value, row); err != nil {
		return nil, err
	}
	id, _ := splitKey(kv.Key, ctlPrefix)
	oc := c.ledger.setControl(id, row)
	if oc == nil {
		return nil, nil
	}
	c.follow(oc, row.State)
	cmd, _, open := c.ledger.command(id)
	if !open {
		return nil, nil
	}
	return commandEvent(cmd), nil
}

// follow does what a decision asks for: also after a restart.
func (c *Coordinator) follow(oc *openCommand, to musterv1.Command_State) {
	switch to {
	case musterv1.Command_CANCELLED:
		c.settle(func() []ref { return c.ledger.claimQueued(oc) }, musterv1.Target_CANCELLED, "the command was cancelled before it was sent")
		c.dispatch.wake(oc.targets...)
	case musterv1.Command_OPEN:
		c.begin(oc)
	}
}

func (s *commandService) CancelCommand(ctx context.Context, req *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	return s.decide(ctx, req, musterv1.Command_CANCELLED, "cancelled")
}

func (s *commandService) PauseCommand(ctx context.Context, req *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	return s.decide(ctx, req, musterv1.Command_PAUSED, "paused")
}

func (s *commandService) ResumeCommand(ctx context.Context, req *musterv1.ControlCommandRequest) (*musterv1.Command, error) {
	return s.decide(ctx, req, musterv1.Command_OPEN, "")
}

func (s *commandService) decide(ctx context.Context, req *musterv1.ControlCommandRequest, to musterv1.Command_State, word string) (*musterv1.Command, error) {
	if len(req.Reason) > maxReason {
		return nil, invalid("reason", "%d bytes, at most %d", len(req.Reason), maxReason)
	}
	reason := req.Reason
	if reason == "" {
		reason = word
	}
	cmd, err := s.c.control(ctx, req.Id, func(now musterv1.Command_State, failures int) (store.Op, error) {
		switch {
		case now == to:
			return store.Op{}, nil // asked twice: the answer is the same
		case now == musterv1.Command_CANCELLED:
			return store.Op{}, fail(codes.FailedPrecondition, "COMMAND_CANCELLED", fmt.Sprintf("command %s is cancelled", req.Id))
		case now == musterv1.Command_HALTED && to == musterv1.Command_PAUSED:
			return store.Op{}, fail(codes.FailedPrecondition, "COMMAND_HALTED", fmt.Sprintf("command %s is halted: nothing is sent already", req.Id))
		}
		return s.c.controlOp(req.Id, to, reason, failures), nil
	})
	if err == nil && cmd == nil {
		return s.c.command(ctx, req.Id)
	}
	return cmd, err
}

// sendCancels asks an agent to stop what it was sent of cancelled commands.
func (d *dispatcher) sendCancels(agent string, s *session, es []*entry) {
	until := time.Now().Add(d.cfg.ResendAfter)
	for _, e := range es {
		if err := s.peer.Send(&musterv1.Cancel{CommandId: e.oc.cmd.Id}); err != nil {
			if errors.Is(err, bus.ErrQueueFull) {
				s.whenDrained("commands", func() { d.wake(agent) })
			}
			return
		}
		d.ledger.cancelling(e, s, until)
	}
	if len(es) > 0 {
		d.wakeAt(until, agent)
	}
}
