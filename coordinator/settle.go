package coordinator

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// watchEnd arms the two timers that make every target final: at expiry those
// that were never sent are EXPIRED, at expiry + timeout + grace the rest is LOST.
func (c *Coordinator) watchEnd(oc *openCommand) {
	left := time.Until(oc.expires)
	loss := left + oc.cmd.Timeout.AsDuration() + c.cfg.Grace
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	oc.expiry = time.AfterFunc(left, func() {
		c.settle(func() []ref { return c.ledger.claimQueued(oc) }, musterv1.Target_EXPIRED, "it expired before it was sent")
	})
	oc.loss = time.AfterFunc(loss, func() {
		c.settle(func() []ref { return c.ledger.claimOpen(oc) }, musterv1.Target_LOST, "it was sent and the agent never told what came of it")
	})
}

// settle gives final states that the coordinator decides to the targets that
// claim returns. It tries until the store has them.
func (c *Coordinator) settle(claim func() []ref, to musterv1.Target_State, reason string) {
	now := c.nowStamp()
	for part := range slices.Chunk(claim(), store.MaxOps/2) {
		results := make([]result, 0, len(part))
		for _, r := range part {
			results = append(results, resultOf(decided(r.oc.cmd.Id, r.agent(), to, reason, now)))
		}
		c.batch.must(c.insist(&write{ops: fixed(), results: results}))
	}
}

// insist makes w a write that is queued again until it is stored.
func (c *Coordinator) insist(w *write) *write {
	w.done = func(_ []bool, err error) {
		if err != nil {
			c.log.Error("not stored, trying again", "err", err)
			again := &write{ops: w.ops, results: w.results}
			time.AfterFunc(time.Second, func() { c.batch.must(c.insist(again)) })
		}
	}
	return w
}

// decided is the final Target of one that the coordinator decides about.
func decided(id, agent string, to musterv1.Target_State, reason string, at *timestamppb.Timestamp) *musterv1.Target {
	return &musterv1.Target{CommandId: id, AgentId: agent, State: to, Reason: reason, EndTime: at}
}

// end writes the summary of a command whose targets are all final.
func (c *Coordinator) end(oc *openCommand) {
	id := oc.cmd.Id
	c.batch.must(&write{
		blind: true,
		ops: func(ctx context.Context) ([]store.Op, error) {
			ops, err := c.index(ctx, oc)
			return append(ops,
				store.Op{Kind: store.PutIfAbsent, Space: spaceHistory, Key: sumKey(id), Value: encode(c.ledger.summary(oc, c.cfg.Now()))},
				store.Op{Kind: store.Delete, Space: spaceHistory, Key: openKey(id)},
			), err
		},
		done: func(_ []bool, err error) {
			if err != nil {
				c.log.Error("end of command not stored, trying again", "cmd", id, "err", err)
				time.AfterFunc(time.Second, func() { c.end(oc) })
			}
		},
	})
}
