package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	pruneEvery  = 10 * time.Second // a round; an earlier one …
	pruneAfter  = 500              // … after so many commands have ended
	pruneAtOnce = 2000             // commands removed in one pass, so that a pass is short
	keepKeysFor = 24 * time.Hour   // an Idempotency-Key is honoured that long
)

// sized is a store that knows how many bytes its rows take.
type sized interface {
	Used() (bytes int64, err error)
}

// retention keeps the history within its limits of age, number and size. It
// takes ended commands only, oldest first, and never an open one.
type retention struct {
	c     *Coordinator
	ended atomic.Int64        // commands with a summary; negative: not counted yet
	fresh int                 // of them counted since the start; of the follower alone
	early chan struct{}       // cap 1: it is time for a round
	told  map[string]struct{} // records that cannot be read
}

func newRetention(c *Coordinator) *retention {
	r := &retention{c: c, early: make(chan struct{}, 1), told: map[string]struct{}{}}
	r.ended.Store(-1)
	return r
}

// count counts an ended command, once the others are counted. After some it does
// not wait for the next round: how large the file grows shall not depend on the
// pace of the commands.
func (r *retention) count() {
	for n := r.ended.Load(); n >= 0; n = r.ended.Load() {
		if !r.ended.CompareAndSwap(n, n+1) {
			continue
		}
		if r.fresh++; r.fresh%pruneAfter == 0 {
			select {
			case r.early <- struct{}{}:
			default:
			}
		}
		return
	}
}

// recount counts all of them anew before the next round: the ends of some were
// not seen.
func (r *retention) recount() { r.ended.Store(-1) }

func (r *retention) run(ctx context.Context) error {
	t := time.NewTicker(pruneEvery)
	defer t.Stop()
	for keys := time.Now(); ; {
		n, err := r.prune(ctx, r.c.cfg.Now())
		if err != nil && ctx.Err() == nil {
			r.c.log.Error("history not pruned", "err", err)
			pause(ctx, time.Second)
		}
		if time.Since(keys) > time.Hour {
			keys = time.Now()
			if err := r.pruneKeys(ctx, r.c.cfg.Now().Add(-keepKeysFor)); err != nil && ctx.Err() == nil {
				r.c.log.Error("old Idempotency-Keys not removed", "err", err)
			}
		}
		if n == pruneAtOnce {
			continue // there is more to do
		}
		select {
		case <-t.C:
		case <-r.early:
		case <-ctx.Done():
			return nil
		}
	}
}

// prune removes what is over a limit, up to pruneAtOnce commands, and returns
// their number.
func (r *retention) prune(ctx context.Context, now time.Time) (n int, err error) {
	surplus, err := r.surplus(ctx)
	if err != nil {
		return 0, err
	}
	old := now.Add(-r.c.cfg.KeepFor)
	rest := removal{store: r.c.store}
	removed := func(err error) (int, error) {
		if err == nil {
			err = rest.flush(ctx)
		}
		if err != nil {
			r.recount() // how much of it is done is not known
			return 0, err
		}
		r.ended.Add(int64(-n))
		return n, nil
	}
	var after []byte
	for n < pruneAtOnce {
		page, err := r.c.store.Scan(ctx, spaceHistory, store.Range{Prefix: []byte(sumPrefix), After: after, Limit: 200})
		if err != nil {
			return removed(err)
		}
		for _, kv := range page.Items {
			after = kv.Key
			id, _ := splitKey(kv.Key, sumPrefix)
			if n >= surplus && !madeBefore(id, old) {
				return removed(nil) // what was made since then cannot have ended before
			}
			if n >= surplus && !r.endedBefore(kv, old) {
				continue
			}
			if err := rest.add(ctx, id); err != nil {
				return removed(fmt.Errorf("command %s: %w", id, err))
			}
			if n++; n == pruneAtOnce {
				break
			}
		}
		if !page.More {
			break
		}
	}
	return removed(nil)
}

// madeBefore goes by the time in a command's id.
func madeBefore(id string, t time.Time) bool {
	made, err := ulid.ParseStrict(id)
	return err != nil || made.Time() < ulid.Timestamp(t)
}

// endedBefore goes by the record's own time. One that cannot be read goes by the
// count only, and is told once.
func (r *retention) endedBefore(kv store.KV, t time.Time) bool {
	sum := &musterv1.CommandSummary{}
	err := decode(kv.Key, kv.Value, sum)
	if _, told := r.told[string(kv.Key)]; err != nil && !told {
		r.told[string(kv.Key)] = struct{}{}
		r.c.log.Error("an old record cannot be read; it is removed when there are too many", "err", err)
	}
	return err == nil && sum.EndTime != nil && sum.EndTime.AsTime().Before(t)
}

// surplus is how many ended commands are too many, by number and by size.
func (r *retention) surplus(ctx context.Context) (int, error) {
	ended := r.ended.Load()
	if ended < 0 { // not counted since the start
		n := int64(0)
		err := r.c.each(ctx, spaceHistory, sumPrefix, func(store.KV) error { n++; return nil })
		if err != nil {
			return 0, err
		}
		r.ended.CompareAndSwap(ended, n)
		ended = n
	}
	over := max(0, int(ended)-r.c.cfg.KeepCommands)
	if s, ok := r.c.store.(sized); ok && r.c.cfg.KeepBytes > 0 {
		used, err := s.Used()
		if err != nil {
			return 0, err
		}
		if used > r.c.cfg.KeepBytes { // as large a part of the commands as of the bytes
			over = max(over, int(ended*(used-r.c.cfg.KeepBytes)/used)+1)
		}
	}
	return over, nil
}

// removal deletes rows, many in a commit, in the order in which they are named.
type removal struct {
	store store.Store
	ops   []store.Op
}

// add deletes all rows of a command. Its summary goes last, so that a removal cut
// short is taken up again.
func (r *removal) add(ctx context.Context, id string) error {
	for _, p := range []struct {
		space  store.Space
		prefix string
	}{
		{spaceHistory, resPrefix + id + "/"}, {spaceHistory, indexPrefix + id + "/"}, {spaceHistory, latePrefix + id + "/"}, {spaceHistory, sentPrefix + id + "/"},
		{spaceHistory, ctlPrefix + id}, {spaceBulk, outputPrefix + id + "/"}, {spaceBulk, targetsPrefix + id + "/"},
		{spaceHistory, cmdPrefix + id}, {spaceHistory, sumPrefix + id},
	} {
		if err := r.under(ctx, p.space, p.prefix, nil); err != nil {
			return err
		}
	}
	return nil
}

// under deletes the rows under a prefix that come after a key.
func (r *removal) under(ctx context.Context, space store.Space, prefix string, after []byte) error {
	return eachRow(ctx, r.store, space, []byte(prefix), after, func(kv store.KV) error { return r.drop(ctx, space, kv.Key) })
}

func (r *removal) drop(ctx context.Context, space store.Space, key []byte) error {
	r.ops = append(r.ops, store.Op{Kind: store.Delete, Space: space, Key: key})
	if len(r.ops) < store.MaxOps/2 { // half a batch: writes that wait behind it wait less
		return nil
	}
	return r.flush(ctx)
}

func (r *removal) flush(ctx context.Context) error {
	if len(r.ops) == 0 {
		return nil
	}
	_, err := r.store.Commit(ctx, store.Batch{Ops: r.ops})
	r.ops = nil
	return err
}

// pruneKeys forgets Idempotency-Keys made before t.
func (r *retention) pruneKeys(ctx context.Context, t time.Time) error {
	gone := removal{store: r.c.store}
	err := r.c.each(ctx, spaceHistory, idemPrefix, func(kv store.KV) error {
		row := &musterv1.Idempotency{}
		if err := decode(kv.Key, kv.Value, row); err != nil || !row.CreateTime.AsTime().Before(t) {
			return nil
		}
		return gone.drop(ctx, spaceHistory, kv.Key)
	})
	if err != nil {
		return err
	}
	return gone.flush(ctx)
}
