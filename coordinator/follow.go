package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// followLoop applies what is committed to the ledger and the feed. A watch that
// was cut is no harm: what is open is read again.
func (c *Coordinator) followLoop(ctx context.Context) error {
	for {
		err := c.followWatch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrCompacted) {
			c.log.Error("not following the store; reading all that is open again", "err", err)
		}
		pause(ctx, 100*time.Millisecond)
		for err := c.reload(ctx); err != nil && ctx.Err() == nil; err = c.reload(ctx) {
			c.log.Error("cannot read what is open", "err", err) // and a watch from here would miss it
			pause(ctx, time.Second)
		}
	}
}

// followWatch applies changes from from0 on, until the watch is cut or one cannot
// be applied.
func (c *Coordinator) followWatch(ctx context.Context) error {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	changes, err := c.store.Watch(ctx, spaceHistory, nil, c.from0)
	if err != nil {
		return err
	}
	for es := range changes {
		if err := c.apply(ctx, es); err != nil {
			return err
		}
	}
	return nil
}

// reload reads what is open again after changes were missed, and sends readers
// of events to do the same.
func (c *Coordinator) reload(ctx context.Context) error {
	if err := c.loadOpen(ctx); err != nil { // opens what is new
		return err
	}
	c.fresh.clear()                     // not earlier: what is stored before from0 does not come again
	for _, id := range c.ledger.ids() { // brings what was known up to date, and what was opened at once meanwhile
		err := c.catchUp(ctx, id)
		if errors.Is(err, errBadRow) {
			c.log.Error("open command not read again; what was missed of it is not known", "cmd", id, "err", err)
		} else if err != nil {
			return err
		}
	}
	c.kept.recount()
	c.feed.publish(&musterv1.Event{Kind: "resync"})
	c.ledger.reach(c.from0)
	return nil
}

// catchUp brings an open command up to date.
func (c *Coordinator) catchUp(ctx context.Context, id string) error {
	err := c.each(ctx, spaceHistory, sentPrefix+id+"/", func(kv store.KV) error { return c.applySent(id, kv) })
	if err != nil {
		return err
	}
	var ended, halted, going []*openCommand
	err = eachPack(ctx, c.store, id, func(n uint32, ts []*musterv1.Target) error {
		c.learn(id, n, ts)
		e, h, g := c.ledger.finals(ts)
		ended, halted, going = append(ended, e...), append(halted, h...), append(going, g...)
		c.settled(ts)
		return nil
	})
	c.afterFinals(ended, halted, slices.Compact(going)) // also of a part: it is told once
	if err != nil {
		return err
	}
	if err := c.each(ctx, spaceHistory, ctlPrefix+id, func(kv store.KV) error { _, err := c.applyControl(kv); return err }); err != nil {
		return err
	}
	kvs, err := c.store.Get(ctx, spaceHistory, sumKey(id))
	if err == nil && kvs[0].Rev != 0 {
		c.ledger.close(id)
	}
	return err
}

// apply brings one commit's changes, in their order, into the ledger and the
// feed.
func (c *Coordinator) apply(ctx context.Context, es []store.Event) error {
	var events []*musterv1.Event
	var finals []*musterv1.Target
	var rev store.Rev
	for _, e := range es {
		rev = max(rev, e.Rev)
		if e.Deleted {
			continue
		}
		prefix, _, _ := strings.Cut(string(e.Key), "/")
		var err error
		switch prefix + "/" {
		case cmdPrefix:
			id, _ := splitKey(e.Key, cmdPrefix)
			if err = c.openCommand(ctx, id); err == nil {
				if cmd, _, open := c.ledger.command(id); open {
					events = append(events, commandEvent(cmd))
				}
			}
		case sentPrefix:
			id, _ := splitKey(e.Key, sentPrefix)
			err = c.applySent(id, e.KV)
		case resPrefix:
			var ts []*musterv1.Target
			ts, err = c.arrived(e.KV)
			finals = append(finals, ts...)
		case ctlPrefix:
			var ev *musterv1.Event
			if ev, err = c.applyControl(e.KV); ev != nil {
				events = append(events, ev)
			}
		case sumPrefix:
			var ev *musterv1.Event
			if ev, err = c.applyEnd(e.KV); ev != nil {
				events = append(events, ev)
			}
		}
		if err != nil {
			return fmt.Errorf("apply %q: %w", e.Key, err)
		}
	}
	ended, halted, going := c.ledger.finals(finals)
	c.feed.publish(events...)
	c.tellTargets(finals...)
	c.settled(finals)
	c.afterFinals(ended, halted, going)
	c.ledger.reach(rev)
	return nil
}

// afterFinals does what new final states ask for.
func (c *Coordinator) afterFinals(ended, halted, going []*openCommand) {
	for _, oc := range ended {
		c.end(oc)
	}
	for _, oc := range halted {
		c.recordHalt(oc)
	}
	for _, oc := range going {
		c.goOn(oc)
	}
}

// settled lets dispatch use the places that final targets have left.
func (c *Coordinator) settled(ts []*musterv1.Target) {
	if len(ts) == 0 {
		return
	}
	agents := make([]string, len(ts))
	for i, t := range ts {
		agents[i] = t.AgentId
	}
	c.dispatch.wake(agents...)
}

func (c *Coordinator) applySent(id string, kv store.KV) error {
	oc := c.ledger.get(id)
	if oc == nil {
		return nil
	}
	var refs []ref
	err := eachMark(kv, len(oc.targets), func(i int) { refs = append(refs, ref{oc, i}) })
	c.ledger.sent(refs)
	return err
}

func (c *Coordinator) applyEnd(kv store.KV) (*musterv1.Event, error) {
	sum := &musterv1.CommandSummary{}
	if err := decode(kv.Key, kv.Value, sum); err != nil {
		return nil, err
	}
	id, _ := splitKey(kv.Key, sumPrefix)
	cmd, _, open := c.ledger.command(id)
	if !open {
		return nil, nil
	}
	c.ledger.close(id)
	c.kept.count()
	c.log.Info("command done", "cmd", id, "type", cmd.Type, "targets", sum.Counts.GetTotal(), "succeeded", sum.Counts.GetSucceeded())
	return commandEvent(finish(cmd, sum)), nil
}

// finish makes an ended command from how it was submitted and its summary.
func finish(cmd *musterv1.Command, sum *musterv1.CommandSummary) *musterv1.Command {
	cmd.State, cmd.Counts, cmd.EndTime = sum.State, sum.Counts, sum.EndTime
	return cmd
}
