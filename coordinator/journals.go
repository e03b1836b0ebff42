package coordinator

import (
	"context"
	"sync"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// journals writes down, at most a second late, how far each agent's journal
// was. An agent that comes back behind that was restored from an older copy,
// and must not be sent again what it may have run.
type journals struct {
	mu    sync.Mutex
	dirty map[string]*musterv1.JournalPosition
}

// told notes how far an agent's journal is.
func (c *Coordinator) told(a *agent, seq uint32) {
	c.fleet.mu.RLock()
	known := seq <= a.seq
	c.fleet.mu.RUnlock()
	if known {
		return
	}
	c.fleet.mu.Lock()
	a.seq = max(a.seq, seq)
	pos := &musterv1.JournalPosition{Epoch: a.row.GetJournal().GetEpoch(), Seq: a.seq}
	c.fleet.mu.Unlock()
	c.journals.mu.Lock()
	defer c.journals.mu.Unlock()
	if c.journals.dirty == nil {
		c.journals.dirty = map[string]*musterv1.JournalPosition{}
	}
	c.journals.dirty[a.id] = pos
}

// flush stores what was told since the last time. What fails is told again by
// the next report.
func (c *Coordinator) flushJournals() {
	c.journals.mu.Lock()
	dirty := c.journals.dirty
	c.journals.dirty = nil
	c.journals.mu.Unlock()
	var ops []store.Op
	for id, pos := range dirty {
		ops = append(ops, store.Op{Kind: store.Put, Space: spaceFleet, Key: journalKey(id), Value: encode(pos)})
	}
	for part := range parts(ops, store.MaxOps/2) {
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
			a.seq = max(a.seq, pos.Seq)
		}
		return nil
	})
}
