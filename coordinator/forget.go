package coordinator

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var (
	errDeleted   = errors.New("coordinator: the agent was deleted")
	errForgotten = errors.New("coordinator: the agent was deleted while it registered")
	errExpired   = errors.New("coordinator: the agent was offline for too long")
)

// deletedRetry is told to an agent that was deleted while it was connected.
const deletedRetry = 5 * time.Second

// expiryLook is how often an agent is looked at that should be forgotten and
// cannot be yet.
func (c *Coordinator) expiryLook() time.Duration { return min(c.cfg.ForgetAfter, time.Hour) }

// expire forgets an agent that was OFFLINE for ForgetAfter, unless a command
// still waits for it.
func (c *Coordinator) expire(a *agent) {
	if !c.ledger.idle(a.id) {
		return
	}
	c.forget(a.id, errExpired, func(b *agent) bool { return b == a && b.status == musterv1.Agent_OFFLINE })
}

// forget takes an agent out of the fleet, if sure still says so: it ends what
// waits for it, closes its link, and removes its rows. When it comes again it is
// a new agent. History stays. The channel gets what came of the first try to
// store that; it is tried until it is stored.
func (c *Coordinator) forget(id string, why error, sure func(*agent) bool) (stored <-chan error, ok bool) {
	c.fleet.mu.Lock()
	a := c.fleet.agents[id]
	if a == nil || a.row == nil || !sure(a) {
		c.fleet.mu.Unlock()
		return nil, false
	}
	last, s := c.fleet.viewLocked(a), a.session
	a.session = nil
	a.stopTimersLocked()
	next, waits := a.endContestLocked()
	c.fleet.removeLocked(a)
	c.groups.touch(id)
	c.fleet.mu.Unlock()
	c.configs.forget(id)

	if s != nil {
		quiet(s.peer.Send(&musterv1.Goodbye{Reason: why.Error(), RetryAfter: durationpb.New(deletedRetry)}))
		s.peer.Close(why)
	}
	if waits {
		c.turnAway(next, errForgotten, deletedRetry)
	}
	c.log.Info("agent forgotten", "agent", id, "why", why)
	c.endTargets(id)
	return c.removeRows(last), true
}

// endTargets makes every target of an agent final: CANCELLED what was never
// sent, LOST the rest.
func (c *Coordinator) endTargets(id string) {
	never := c.ledger.claimWaiting(id)
	c.settle(func() []ref { return never }, musterv1.Target_CANCELLED, "the agent was deleted before it was sent")
	c.settle(func() []ref { return c.ledger.claimRest(id, never) }, musterv1.Target_LOST, "the agent was deleted: it may have run")
}

// removeRows deletes what the store holds of an agent, and tells that it is gone.
func (c *Coordinator) removeRows(last *musterv1.Agent) <-chan error {
	told := make(chan error, 1)
	var try func()
	try = func() {
		c.batch.must(&write{
			ops: func(context.Context) ([]store.Op, error) { return c.rowsOf(last.Id), nil },
			done: func(_ []bool, err error) {
				select {
				case told <- err:
				default:
				}
				if err != nil {
					c.log.Error("deleted agent not removed from the store, trying again", "agent", last.Id, "err", err)
					time.AfterFunc(time.Second, try)
					return
				}
				c.feed.publish(&musterv1.Event{Kind: "agent", Agent: last, Deleted: true})
			},
		})
	}
	try()
	return told
}

// rowsOf are the deletions of an agent's rows; none when it has come again.
func (c *Coordinator) rowsOf(id string) (ops []store.Op) {
	if c.fleet.knows(id) {
		return nil
	}
	for _, key := range [][]byte{agentKey(id), journalKey(id), heldKey(id)} {
		ops = append(ops, store.Op{Kind: store.Delete, Space: spaceFleet, Key: key})
	}
	return ops
}

// removeLocked takes an agent out.
func (f *fleet) removeLocked(a *agent) {
	f.setStatusLocked(a, musterv1.Agent_OFFLINE)
	a.removed = true
	delete(f.agents, a.id)
	f.sorted = nil
}

// idle reports whether nothing waits for an agent.
func (l *ledger) idle(agent string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[agent] == nil
}

// awaitIdle waits until every target of an agent is final.
func (l *ledger) awaitIdle(ctx context.Context, agent string) error {
	for {
		moved := l.next()
		if l.idle(agent) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
