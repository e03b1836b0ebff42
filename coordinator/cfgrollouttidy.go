package coordinator

import (
	"context"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// keptRollouts is how many rollouts that have ended are kept, of all configs;
// beyond that the oldest go.
const keptRollouts = 1000

// tidy removes what rollouts that have ended since need no more, and the oldest
// of all.
func (rs *configRollouts) tidy(ctx context.Context) error {
	rs.mu.Lock()
	ended := rs.closed
	rs.closed = nil
	rs.mu.Unlock()
	for i, id := range ended {
		if err := rs.tidyOne(ctx, id); err != nil {
			rs.mu.Lock()
			rs.closed = append(rs.closed, ended[i:]...) // again, later
			rs.mu.Unlock()
			return err
		}
	}
	if len(ended) == 0 {
		return nil
	}
	return rs.removeOld(ctx)
}

// tidyOne removes what the outcome of a rollout tells, too.
func (rs *configRollouts) tidyOne(ctx context.Context, id string) error {
	if err := rs.dropRows(ctx, spaceConfig, offeredPrefix+id+"/", nil); err != nil {
		return err
	}
	return rs.dropRows(ctx, spaceBulk, targetsPrefix+id+"/", nil)
}

func (rs *configRollouts) removeOld(ctx context.Context) error {
	var ended []string
	err := rs.c.each(ctx, spaceConfig, rolloutPrefix, func(kv store.KV) error {
		row := &musterv1.ConfigRollout{}
		if decode(kv.Key, kv.Value, row) == nil && row.EndTime != nil {
			ended = append(ended, row.Id)
		}
		return nil
	})
	for i := 0; err == nil && i < len(ended)-keptRollouts; i++ {
		err = rs.remove(ctx, ended[i])
	}
	return err
}

// remove deletes what is left of a rollout that was tidied, the row that names it
// last.
func (rs *configRollouts) remove(ctx context.Context, id string) error {
	if err := rs.dropRows(ctx, spaceBulk, outcomePrefix+id+"/", nil); err != nil {
		return err
	}
	_, err := rs.c.store.Commit(ctx, store.Batch{Ops: []store.Op{{Kind: store.Delete, Space: spaceConfig, Key: rolloutKey(id)}}})
	return err
}

// dropRows deletes the rows under a prefix that come after a key.
func (rs *configRollouts) dropRows(ctx context.Context, space store.Space, prefix string, after []byte) error {
	gone := removal{store: rs.c.store}
	if err := gone.under(ctx, space, prefix, after); err != nil {
		return err
	}
	return gone.flush(ctx)
}
