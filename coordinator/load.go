package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// load reads what must be in memory: agents, tokens, open commands, and the
// newest id. Ended commands stay where they are.
func (c *Coordinator) load(ctx context.Context) error {
	err := c.each(ctx, spaceFleet, agentPrefix, func(kv store.KV) error {
		row := &musterv1.Agent{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			c.log.Error("agent not read; it is known again when it registers", "err", err)
			return nil
		}
		c.adopt(row)
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.loadJournals(ctx); err != nil {
		return err
	}
	if c.tokens, err = loadTokens(ctx, c); err != nil {
		return err
	}
	if err := c.loadKeys(ctx); err != nil {
		return err
	}
	if err := c.wanted.load(ctx); err != nil {
		return err
	}
	if err := c.configs.loadHeld(ctx); err != nil {
		return err
	}
	lastCommand, err := c.newest(ctx, spaceHistory, cmdPrefix)
	if err != nil {
		return err
	}
	lastRollout, err := c.newest(ctx, spaceConfig, rolloutPrefix)
	if err != nil {
		return err
	}
	c.ids = newIDs(max(lastCommand, lastRollout))
	if err := c.sweepDrafts(ctx); err != nil { // as on a full disk; they do no harm
		c.log.Error("target lists without a command are left for the next start", "err", err)
	}
	return c.loadOpen(ctx)
}

// newest returns the last id under a prefix, or "".
func (c *Coordinator) newest(ctx context.Context, space store.Space, prefix string) (id string, err error) {
	page, err := c.store.Scan(ctx, space, store.Range{Prefix: []byte(prefix), Limit: 1, Reverse: true})
	for _, kv := range page.Items {
		id, _ = splitKey(kv.Key, prefix)
	}
	return id, err
}

// loadOpen opens every command that has not ended, and sets where the watch
// starts.
func (c *Coordinator) loadOpen(ctx context.Context) error {
	page, err := c.store.Scan(ctx, spaceHistory, store.Range{Prefix: []byte(openPrefix), Limit: 1})
	if err != nil {
		return err
	}
	c.from0 = page.Rev
	c.ledger.readAt(page.Rev)
	return c.each(ctx, spaceHistory, openPrefix, func(kv store.KV) error {
		id, _ := splitKey(kv.Key, openPrefix)
		err := c.openCommand(ctx, id)
		if errors.Is(err, errBadRow) {
			c.log.Error("open command not read; it is sent to nobody", "cmd", id, "err", err)
			return nil
		}
		return err
	})
}

// each calls fn for every row under prefix, in order.
func (c *Coordinator) each(ctx context.Context, s store.Space, prefix string, fn func(store.KV) error) error {
	return eachRow(ctx, c.store, s, []byte(prefix), nil, fn)
}

// openCommand puts a command and all that the store knows of its targets into
// the ledger.
func (c *Coordinator) openCommand(ctx context.Context, id string) error {
	if c.ledger.get(id) != nil {
		return nil // opened at once
	}
	kvs, err := c.store.Get(ctx, spaceHistory, cmdKey(id), openKey(id), ctlKey(id))
	if err != nil {
		return err
	}
	if kvs[0].Rev == 0 || kvs[1].Rev == 0 {
		return nil // ended meanwhile
	}
	cmd := &musterv1.Command{}
	if err := decode(kvs[0].Key, kvs[0].Value, cmd); err != nil {
		return err
	}
	targets, err := c.targets(ctx, id)
	if err != nil {
		return err
	}
	ctl := &musterv1.CommandControl{State: musterv1.Command_OPEN}
	if err := decode(kvs[2].Key, kvs[2].Value, ctl); err != nil {
		return err
	}
	oc, err := c.newOpen(cmd, targets)
	if err != nil {
		return err
	}
	err = c.each(ctx, spaceHistory, sentPrefix+id+"/", func(kv store.KV) error {
		oc.marks++
		return eachMark(kv, len(oc.states), func(i int) {
			oc.states[i] = state(musterv1.Target_SENT)
			if oc.plan != nil {
				oc.plan.sent++
			}
		})
	})
	if err != nil {
		return err
	}
	err = eachPack(ctx, c.store, id, func(n uint32, ts []*musterv1.Target) error {
		oc.learn(n, ts, func(i int, t *musterv1.Target) { oc.states[i] = state(t.State) })
		return nil
	})
	if err != nil {
		return err
	}
	if ctl.State != 0 {
		oc.control, oc.reason = ctl.State, ctl.Reason
	}
	if oc.plan != nil {
		oc.plan.forgiven = int(ctl.Forgiven)
	}
	if c.ledger.add(oc) {
		c.opened(oc)
	}
	return nil
}

// newOpen is a command of whose targets nothing is known yet.
func (c *Coordinator) newOpen(cmd *musterv1.Command, targets []string) (*openCommand, error) {
	plan, err := newPlan("rollout", cmd.Rollout, len(targets))
	if err != nil {
		return nil, fmt.Errorf("command %s: %w", cmd.Id, err)
	}
	oc := &openCommand{cmd: cmd, targets: targets, plan: plan, control: musterv1.Command_OPEN, ended: make(chan struct{})}
	// The time left is measured once, by the wall clock; from here on it runs
	// by the monotonic one.
	oc.expires = time.Now().Add(cmd.ExpireTime.AsTime().Sub(c.cfg.Now()))
	oc.states = make([]state, len(targets))
	for i := range oc.states {
		oc.states[i] = state(musterv1.Target_QUEUED)
	}
	oc.places.at = make([]place, len(targets))
	return oc, nil
}

// opened lets a command begin that was added to the ledger.
func (c *Coordinator) opened(oc *openCommand) {
	c.watchEnd(oc)
	if c.cfg.CancelOffline { // who went OFFLINE while it was stored, or while this process was down
		c.settle(func() []ref { return c.ledger.claimQueuedOf(oc, c.fleet.offline(oc.targets)) }, musterv1.Target_CANCELLED, agentOffline)
	}
	if oc.control != musterv1.Command_OPEN {
		c.follow(oc, oc.control)
	} else if c.ledger.overBudget(oc) {
		c.recordHalt(oc)
	}
	if c.ledger.endedAlready(oc) {
		c.end(oc)
	}
	c.begin(oc)
}

// begin lets a command that may be sent go to its agents: a rollout to those
// whose turn it is, in the order of their ids.
func (c *Coordinator) begin(oc *openCommand) {
	if oc.plan != nil {
		c.goOn(oc)
		return
	}
	c.dispatch.wake(oc.targets...)
}

func eachMark(kv store.KV, n int, fn func(i int)) error {
	row := &musterv1.SentMarks{}
	if err := decode(kv.Key, kv.Value, row); err != nil {
		return err
	}
	for _, i := range row.Targets {
		if int(i) < n {
			fn(int(i))
		}
	}
	return nil
}

// targets reads a command's whole target list.
func (c *Coordinator) targets(ctx context.Context, id string) (list []string, err error) {
	return targetList(ctx, c.store, id)
}

// sweepDrafts removes target lists whose command was never stored, and what was
// stored of results with them.
func (c *Coordinator) sweepDrafts(ctx context.Context) error {
	gone := removal{store: c.store}
	err := c.each(ctx, spaceHistory, draftPrefix, func(kv store.KV) error {
		id, _ := splitKey(kv.Key, draftPrefix)
		if err := gone.under(ctx, spaceHistory, resPrefix+id+"/", nil); err != nil {
			return err
		}
		if err := gone.under(ctx, spaceBulk, targetsPrefix+id+"/", nil); err != nil {
			return err
		}
		return gone.drop(ctx, spaceHistory, kv.Key) // last, so that a sweep cut short is taken up again
	})
	if err != nil {
		return err
	}
	return gone.flush(ctx)
}
