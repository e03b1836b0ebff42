package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	pruneEvery  = 10 * time.Second
	pruneAtOnce = 2000           // commands removed in one pass, so that a pass is short
	keepKeysFor = 24 * time.Hour // an Idempotency-Key is honoured that long
)

// sized is a store that knows how many bytes its rows take.
type sized interface {
	Used() (bytes int64, err error)
}

// pruneLoop keeps the history within its limits of age, number and size. It
// takes ended commands only, oldest first, and never an open one.
func (c *Coordinator) pruneLoop(ctx context.Context) error {
	t := time.NewTicker(pruneEvery)
	defer t.Stop()
	for keys := time.Now(); ; {
		n, err := c.prune(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			c.log.Error("history not pruned", "err", err)
		}
		if time.Since(keys) > time.Hour {
			keys = time.Now()
			if err := c.pruneKeys(ctx, keys.Add(-keepKeysFor)); err != nil && ctx.Err() == nil {
				c.log.Error("old Idempotency-Keys not removed", "err", err)
			}
		}
		if n == pruneAtOnce {
			continue // there is more to do
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// prune removes what is over a limit, up to pruneAtOnce commands, and returns
// their number.
func (c *Coordinator) prune(ctx context.Context, now time.Time) (n int, err error) {
	surplus, err := c.surplus(ctx)
	if err != nil {
		return 0, err
	}
	var after []byte
	for n < pruneAtOnce && ctx.Err() == nil {
		page, err := c.store.Scan(ctx, spaceHistory, store.Range{Prefix: []byte(sumPrefix), After: after, Limit: 100})
		if err != nil {
			return n, err
		}
		for _, kv := range page.Items {
			after = kv.Key
			id, _ := splitKey(kv.Key, sumPrefix)
			sum := &musterv1.CommandSummary{}
			if err := decode(kv.Key, kv.Value, sum); err != nil {
				c.log.Error("a record that cannot be read goes by the count only", "err", err)
			} else if n >= surplus && !sum.EndTime.AsTime().Before(now.Add(-c.cfg.KeepFor)) {
				return n, nil // the rest is newer
			}
			if sum.EndTime == nil && n >= surplus {
				continue
			}
			if err := c.remove(ctx, id); err != nil {
				return n, fmt.Errorf("command %s: %w", id, err)
			}
			c.ended.Add(-1)
			if n++; n == pruneAtOnce {
				return n, nil
			}
		}
		if !page.More {
			break
		}
	}
	return n, nil
}

// surplus is how many ended commands are too many, by number and by size.
func (c *Coordinator) surplus(ctx context.Context) (int, error) {
	ended := c.ended.Load()
	if ended < 0 { // not counted since the start
		n := int64(0)
		err := c.each(ctx, spaceHistory, sumPrefix, func(store.KV) error { n++; return nil })
		if err != nil {
			return 0, err
		}
		c.ended.CompareAndSwap(ended, n)
		ended = n
	}
	over := max(0, int(ended)-c.cfg.KeepCommands)
	if s, ok := c.store.(sized); ok && c.cfg.KeepBytes > 0 {
		used, err := s.Used()
		if err != nil {
			return 0, err
		}
		if used > c.cfg.KeepBytes { // as large a part of the commands as of the bytes
			over = max(over, int(ended*(used-c.cfg.KeepBytes)/used)+1)
		}
	}
	return over, nil
}

// remove deletes all that belongs to an ended command, its head last, so that a
// removal cut short is taken up again.
func (c *Coordinator) remove(ctx context.Context, id string) error {
	var b store.Batch
	flush := func(min int) error {
		if len(b.Ops) <= min {
			return nil
		}
		_, err := c.store.Commit(ctx, b)
		b.Ops = nil
		return err
	}
	for _, p := range []struct {
		space  store.Space
		prefix string
	}{
		{spaceHistory, resPrefix + id + "/"}, {spaceHistory, latePrefix + id + "/"}, {spaceHistory, sentPrefix + id + "/"},
		{spaceHistory, ctlPrefix + id}, {spaceBulk, outputPrefix + id + "/"}, {spaceBulk, targetsPrefix + id + "/"},
		{spaceHistory, cmdPrefix + id}, {spaceHistory, sumPrefix + id},
	} {
		err := c.each(ctx, p.space, p.prefix, func(kv store.KV) error {
			b.Ops = append(b.Ops, store.Op{Kind: store.Delete, Space: p.space, Key: kv.Key})
			return flush(store.MaxOps / 2)
		})
		if err != nil {
			return err
		}
	}
	return flush(0)
}

// pruneKeys forgets Idempotency-Keys made before t.
func (c *Coordinator) pruneKeys(ctx context.Context, t time.Time) error {
	var b store.Batch
	err := c.each(ctx, spaceHistory, idemPrefix, func(kv store.KV) error {
		row := &musterv1.Idempotency{}
		if err := decode(kv.Key, kv.Value, row); err == nil && row.CreateTime.AsTime().Before(t) {
			b.Ops = append(b.Ops, store.Op{Kind: store.Delete, Space: spaceHistory, Key: kv.Key})
		}
		if len(b.Ops) < store.MaxOps/2 {
			return nil
		}
		_, err := c.store.Commit(ctx, b)
		b.Ops = nil
		return err
	})
	if err == nil && len(b.Ops) > 0 {
		_, err = c.store.Commit(ctx, b)
	}
	return err
}
