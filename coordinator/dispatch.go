package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// dispatcher brings queued commands to agents. Before a command's first send to
// an agent it stores a SENT mark: what has no mark certainly did not run.
type dispatcher struct {
	store     store.Store
	ledger    *ledger
	fleet     *fleet
	cfg       Config
	m         *metrics
	*worklist // agents whose queues are to be looked at
}

// maxMarks is how many targets one SENT row names, so that it stays far under
// the store's value limit.
const maxMarks = 20_000

func newDispatcher(s store.Store, l *ledger, f *fleet, cfg Config, m *metrics) *dispatcher {
	return &dispatcher{store: s, ledger: l, fleet: f, cfg: cfg, m: m, worklist: newWorklist()}
}

func (d *dispatcher) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-d.woken:
			agents, _ := d.take()
			d.round(ctx, agents)
		case now := <-tick.C:
			d.wakeDue(now)
		case <-ctx.Done():
			return nil
		}
	}
}

// parcel is what goes to one agent in a round.
type parcel struct {
	agent   string
	session *session
	delivery
}

// round looks at each agent's queue once: SENT marks for all that is new, in
// as few commits as possible, then the sends.
func (d *dispatcher) round(ctx context.Context, agents map[string]struct{}) {
	now := time.Now()
	var parcels []parcel
	var marks []*entry
	for a, s := range d.fleet.sessionsOf(agents) { // the others are woken again when they register
		del, next := d.ledger.pick(a, s, now, d.cfg.ResendAfter)
		if !next.IsZero() {
			d.wakeAt(next, a)
		}
		if len(del.mark)+len(del.send)+len(del.cancel) > 0 {
			parcels = append(parcels, parcel{a, s, del})
			marks = append(marks, del.mark...)
		}
	}
	marked := d.mark(ctx, marks)
	seals := map[*openCommand]bus.Frames{}
	for _, p := range parcels {
		es := p.send
		for _, e := range p.mark {
			if marked[e.oc] {
				es = append(es, e)
			}
		}
		d.send(p.agent, p.session, es, seals)
		d.sendCancels(p.agent, p.session, p.cancel)
	}
}

// mark stores SENT marks for entries, and tells for which commands that worked.
func (d *dispatcher) mark(ctx context.Context, es []*entry) map[*openCommand]bool {
	byCommand := map[*openCommand][]ref{}
	for _, e := range es {
		byCommand[e.oc] = append(byCommand[e.oc], e.ref)
	}
	marked := make(map[*openCommand]bool, len(byCommand))
	var b markBatch
	flush := func() {
		for _, oc := range d.storeMarks(ctx, b, byCommand) {
			marked[oc] = true
		}
		b = markBatch{}
	}
	for oc, refs := range byCommand {
		b.add(oc, refs)
		if b.full() {
			flush()
		}
	}
	flush()
	return marked
}

// markBatch is SENT marks of one or more commands for one commit.
type markBatch struct {
	commands []*openCommand
	ops      []store.Op
	bytes    int
}

func (b *markBatch) add(oc *openCommand, refs []ref) {
	for part := range slices.Chunk(refs, maxMarks) {
		row := &musterv1.SentMarks{}
		for _, r := range part {
			row.Targets = append(row.Targets, uint32(r.idx))
		}
		op := store.Op{Kind: store.PutIfAbsent, Space: spaceHistory, Key: sentKey(oc.cmd.Id, oc.marks), Value: encode(row)}
		oc.marks++
		b.ops = append(b.ops, op)
		b.bytes += len(op.Key) + len(op.Value)
	}
	b.commands = append(b.commands, oc)
}

// full reports whether another command's marks might not fit.
func (b *markBatch) full() bool {
	return len(b.ops) > store.MaxOps-10 || b.bytes > store.MaxBytes-maxTargets*5
}

// storeMarks commits a batch and returns the commands that may be sent.
func (d *dispatcher) storeMarks(ctx context.Context, b markBatch, refs map[*openCommand][]ref) (ready []*openCommand) {
	if len(b.ops) == 0 {
		return nil
	}
	res, err := d.store.Commit(ctx, store.Batch{Ops: b.ops})
	if err != nil && !errors.Is(err, store.ErrUnknown) {
		d.failed(ctx, b.commands, refs, err)
		return nil
	}
	for _, oc := range b.commands {
		d.ledger.sent(refs[oc])
		if oc.plan == nil || d.within(ctx, oc, res.Rev) {
			ready = append(ready, oc)
		} else {
			d.withhold(ctx, b, oc, refs[oc])
		}
	}
	return ready
}

// within looks at a rollout's budget once more, with all that was committed
// before its marks: nothing is sent after the failure that is one too many.
func (d *dispatcher) within(ctx context.Context, oc *openCommand, rev store.Rev) bool {
	return d.ledger.await(ctx, rev) == nil && d.ledger.mayGo(oc)
}

// withhold deletes marks of targets that were not sent after all. If that
// fails they stay SENT, which promises less.
func (d *dispatcher) withhold(ctx context.Context, b markBatch, oc *openCommand, refs []ref) {
	var undo store.Batch
	prefix := sentPrefix + oc.cmd.Id + "/"
	for _, o := range b.ops {
		if strings.HasPrefix(string(o.Key), prefix) {
			undo.Ops = append(undo.Ops, store.Op{Kind: store.Delete, Space: spaceHistory, Key: o.Key})
		}
	}
	if _, err := d.store.Commit(ctx, undo); err == nil {
		d.ledger.unsend(refs)
	}
}

// failed gives the targets back and tries again soon.
func (d *dispatcher) failed(ctx context.Context, in []*openCommand, byCommand map[*openCommand][]ref, err error) {
	d.cfg.Log.Error("commands not sent: their SENT marks could not be stored", "err", err)
	for _, oc := range in {
		d.ledger.unclaim(byCommand[oc])
		agents := make([]string, 0, len(byCommand[oc]))
		for _, r := range byCommand[oc] {
			agents = append(agents, r.agent())
		}
		if ctx.Err() == nil {
			time.AfterFunc(time.Second, func() { d.wake(agents...) })
		}
	}
}

// send puts entries on a session's queue. One that does not fit is sent when
// the queue has drained, or again after ResendAfter, or on the next session.
func (d *dispatcher) send(agent string, s *session, es []*entry, seals map[*openCommand]bus.Frames) {
	if len(es) == 0 {
		return
	}
	now := time.Now()
	d.ledger.sending(es, s, now.Add(d.cfg.ResendAfter))
	d.wakeAt(now.Add(d.cfg.ResendAfter), agent)
	for i, e := range es {
		f, ok := seals[e.oc]
		if !ok {
			f = seal(e.oc, now)
			seals[e.oc] = f
		}
		if e.oc.plan != nil && !d.ledger.mayGo(e.oc) {
			continue // halted since it was marked: it stays SENT, which promises less
		}
		switch err := s.peer.SendFrames(f); {
		case err == nil:
			d.m.sent()
		case errors.Is(err, bus.ErrQueueFull):
			d.ledger.sending(es[i:], s, now) // at once, when there is room
			s.whenDrained("commands", func() { d.wake(agent) })
			return
		default:
			return // the link is gone: the next session gets it
		}
	}
}

// seal encodes a command as agents get it, once for all of them.
func seal(oc *openCommand, now time.Time) bus.Frames {
	cmd := proto.CloneOf(oc.cmd)
	cmd.Target, cmd.State, cmd.Counts, cmd.WhenOffline = nil, 0, nil, 0
	cmd.ExpiresIn = durationpb.New(max(oc.expires.Sub(now), time.Millisecond))
	f, err := bus.Seal(nil, cmd)
	if err != nil {
		panic(err) // it was decoded from the store: it can be encoded
	}
	return f
}
