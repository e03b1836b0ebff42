package coordinator

import (
	"context"
	"slices"
	"sync"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// journals writes down, at most a second late, how far each agent's journal
// was. An agent that comes back behind that was restored from an older copy,
// and must not be sent again what it may have run.
type journals struct {
	mu      sync.Mutex
	unsaved []*agent
}

// told notes how far an agent's journal is. It is called for every report.
func (c *Coordinator) told(a *agent, seq uint32) {
	for old := a.seq.Load(); ; old = a.seq.Load() {
		if seq <= old {
			return
		}
		if a.seq.CompareAndSwap(old, seq) {
			break
		}
	}
	if a.unsaved.CompareAndSwap(false, true) {
		c.journals.mu.Lock()
		defer c.journals.mu.Unlock()
		c.journals.unsaved = append(c.journals.unsaved, a)
	}
}

// flushJournals stores what was told since the last time. What fails is stored
// after the next report.
func (c *Coordinator) flushJournals() {
	c.journals.mu.Lock()
	agents := c.journals.unsaved
	c.journals.unsaved = nil
	c.journals.mu.Unlock()
	ops := make([]store.Op, 0, len(agents))
	c.fleet.mu.RLock()
	for _, a := range agents {
		a.unsaved.Store(false)
		if a.removed {
			continue
		}
		pos := &musterv1.JournalPosition{Epoch: a.row.GetJournal().GetEpoch(), Seq: a.seq.Load()}
		ops = append(ops, store.Op{Kind: store.Put, Space: spaceFleet, Key: journalKey(a.id), Value: encode(pos)})
	}
	c.fleet.mu.RUnlock()
	for part := range slices.Chunk(ops, store.MaxOps/2) {
		if err := c.batch.add(&write{ops: fixed(part...), size: len(part) * 64}); err != nil {
			c.metrics.dropped("journal_position")
		}
	}
}

// loadJournals raises the positions that registrations had stored.
func (c *Coordinator) loadJournals(ctx context.Context) error {
	return c.each(ctx, spaceFleet, journalPrefix, func(kv store.KV) error {
		pos := &musterv1.JournalPosition{}
		if err := decode(kv.Key, kv.Value, pos); err != nil {
			return err
		}
		id, _ := splitKey(kv.Key, journalPrefix)
		c.fleet.mu.Lock()
		defer c.fleet.mu.Unlock()
		if a := c.fleet.agents[id]; a != nil && a.row.GetJournal().GetEpoch() == pos.Epoch {
			a.seq.Store(max(a.seq.Load(), pos.Seq))
		}
		return nil
	})
}
