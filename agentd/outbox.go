package agentd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// outbox brings Targets to the coordinator. Final ones are sent on each new
// link, and again in growing gaps, until they are acked. Others are sent once, if
// nothing newer comes within a moment: the Register of a new link tells them anyway.
type outbox struct {
	log     *slog.Logger
	metrics *metrics
	outputs outputs

	mu       sync.Mutex
	link     Link // the one that is registered
	statuses statuses
	unacked  map[string]*parcel
	order    []*parcel // unacked ones and some that were acked since
	fresh    []*parcel // to be sent on this link for the first time
	live     []*live   // of programs that run
	wake     chan struct{}
}

// parcel is a final Target on its way.
type parcel struct {
	id     string
	ask    string // by which a Nack names it
	target *musterv1.Target

	// By the goroutine in run alone.
	tries int
	due   time.Time // when it is sent again
	// Under the outbox's lock.
	refusals int
	again    time.Time // asked for by the coordinator: not before
}

const (
	inFlight   = 256 // final Targets that wait for their ack at one time
	firstGap   = 30 * time.Second
	longestGap = 5 * time.Minute
	lastWords  = time.Second // for what is to be sent when the agent ends
)

func newOutbox(o outputs, log *slog.Logger, m *metrics) *outbox {
	return &outbox{log: log, metrics: m, outputs: o, unacked: map[string]*parcel{}, wake: make(chan struct{}, 1)}
}

// tell sends a Target: a final one until it is acked, any other one once, unless
// a later one of the same command comes before it is due.
func (o *outbox) tell(t *musterv1.Target) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.unacked[t.CommandId]
	switch {
	case t.State < musterv1.Target_SUCCEEDED:
		if o.link == nil || p != nil || !o.statuses.put(t) {
			return // nobody hears it, its end is told, or run will look anyway
		}
	case p != nil:
		p.again = time.Now() // asked for once more
	default:
		o.statuses.drop(t.CommandId)
		o.add(&parcel{id: t.CommandId, ask: t.CommandId, target: t})
	}
	o.wakeUp()
}

// add takes a parcel in the place of any other for its command. The caller
// holds the lock.
func (o *outbox) add(p *parcel) {
	o.unacked[p.id] = p
	o.order, o.fresh = append(o.order, p), append(o.fresh, p)
}

// forget drops a Target that was acked.
func (o *outbox) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unacked, id)
	if len(o.order) > 2*len(o.unacked)+1000 {
		o.order = o.inOrder()
	}
	o.wakeUp()
}

// refused is called when the coordinator could not store a final Target now.
func (o *outbox) refused(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.unacked[id]; p != nil {
		p.again = time.Now().Add(min(time.Second<<min(p.refusals, 5), firstGap))
		p.refusals++
		o.wakeUp()
	}
}

// use sends on a link that was registered.
func (o *outbox) use(link Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link != link {
		o.link, o.statuses = link, statuses{}
	}
	o.wakeUp()
}

// gone stops the use of a link.
func (o *outbox) gone(link Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link == link {
		o.link, o.statuses = nil, statuses{}
	}
}

func (o *outbox) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// inOrder returns what is not acked, oldest first. The caller holds the lock.
func (o *outbox) inOrder() []*parcel {
	var ps []*parcel
	for _, p := range o.order {
		if o.unacked[p.id] == p {
			ps = append(ps, p)
		}
	}
	return ps
}

// run sends until ctx ends and then, for a moment, what is left.
func (o *outbox) run(ctx context.Context) {
	for {
		d := o.newDelivery()
		if d == nil {
			select {
			case <-o.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		d.serve(ctx)
		d.close()
		if ctx.Err() != nil {
			return
		}
	}
}

// newDelivery begins on the link there is, with everything that is not acked.
func (o *outbox) newDelivery() *delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link == nil {
		return nil
	}
	o.fresh = nil
	o.order = o.inOrder()
	d := &delivery{outbox: o, link: o.link, flying: map[string]*parcel{}, told: map[string]told{}}
	for _, l := range o.live {
		l.due = time.Now() // on a new link all of it
	}
	for _, p := range o.order {
		p.tries, p.again = 0, time.Time{}
		d.waiting = append(d.waiting, p)
	}
	return d
}

// delivery is the outbox's work on one link.
type delivery struct {
	*outbox
	link    Link
	waiting []*parcel          // to be sent
	flying  map[string]*parcel // sent, not acked
	now     *shipment          // being sent
	told    map[string]told    // of what is not in the final Targets yet
	ending  bool               // nothing is to wait for something newer
}

// shipment is a parcel being sent: its chunks, and the Target last.
type shipment struct {
	parcel *parcel
	target *musterv1.Target
	chunks *chunks
	next   proto.Message
	last   bool
}

// serve sends until the link is gone or replaced, or ctx has ended and nothing
// more can be done in the time left.
func (d *delivery) serve(ctx context.Context) {
	var last <-chan time.Time
	done := ctx.Done()
	timer := time.NewTimer(longestGap)
	defer timer.Stop()
	for d.update() {
		d.ending = ctx.Err() != nil
		idle, full := d.send()
		if idle && d.ending {
			return
		}
		if full {
			timer.Reset(longestGap) // Drained or Done wakes us
		} else {
			timer.Reset(d.nextDue())
		}
		select {
		case <-d.wake:
		case <-d.link.Drained():
		case <-timer.C:
		case <-d.link.Done():
			d.gone(d.link)
			return
		case <-done:
			t := time.NewTimer(lastWords)
			defer t.Stop()
			done, last = nil, t.C
		case <-last:
			return
		}
	}
}

// update takes over what is new; false: the link is used no more.
func (d *delivery) update() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.outbox.link != d.link {
		return false
	}
	d.waiting = append(d.waiting, d.fresh...)
	d.fresh = nil
	now := time.Now()
	for id, p := range d.flying {
		if d.unacked[id] != p {
			delete(d.flying, id)
			continue
		}
		if !p.again.IsZero() {
			p.due, p.again = p.again, time.Time{}
		}
		if !p.due.After(now) {
			delete(d.flying, id)
			d.waiting = append(d.waiting, p)
			d.metrics.resends.Inc()
		}
	}
	return true
}

// send sends what it can until nothing is left to be sent or the link is full.
func (d *delivery) send() (idle, full bool) {
	for {
		m, sent := d.pick()
		if m == nil {
			return len(d.waiting) == 0, false
		}
		err := d.sendOne(m)
		switch {
		case errors.Is(err, bus.ErrQueueFull), errors.Is(err, bus.ErrNoPeer):
			return false, true
		case err != nil:
			d.log.Error("target not sent", "type", m.ProtoReflect().Descriptor().Name(), "err", err)
		}
		sent()
	}
}

func (d *delivery) sendOne(m proto.Message) error {
	if d.now != nil && m == d.now.next && d.now.last {
		return d.link.Ask(d.now.parcel.ask, m)
	}
	return d.link.Send(m)
}

// pick chooses the next message, news of commands before results that may have
// waited for long, and what to do when it is sent.
func (d *delivery) pick() (m proto.Message, sent func()) {
	if t := d.status(); t != nil {
		return t, func() { d.statusSent(t) }
	}
	if c := d.heard(); c != nil {
		return c, func() { d.chunkSent(c) }
	}
	for d.now == nil {
		p := d.take()
		if p == nil {
			return nil, nil
		}
		d.ship(p)
	}
	return d.now.next, d.advance
}

// take returns the next parcel that is not acked, if one more may be on its way.
func (d *delivery) take() *parcel {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.waiting) > 0 && len(d.flying) < inFlight {
		p := d.waiting[0]
		d.waiting = d.waiting[1:]
		if d.unacked[p.id] == p {
			p.again = time.Time{}
			return p
		}
	}
	return nil
}

func (d *delivery) ship(p *parcel) {
	c, t := d.outputs.open(p.target)
	if t != p.target {
		d.metrics.outputCut.Inc()
	}
	c.skip(d.told[p.id])
	delete(d.told, p.id) // when it is sent again, all of it is
	d.now = &shipment{parcel: p, target: t, chunks: c}
	d.now.load()
}

// load reads the next message. Output that cannot be read to its end is given
// up, and the Target says so.
func (s *shipment) load() {
	chunk, err := s.chunks.next()
	if err != nil {
		s.target = proto.CloneOf(s.target)
		dropOutput(s.target, "its output was lost on the agent")
	} else if chunk != nil {
		s.next = chunk
		return
	}
	s.next, s.last = s.target, true
}

func (d *delivery) advance() {
	if !d.now.last {
		d.now.load()
		return
	}
	p := d.now.parcel
	d.now.chunks.close()
	d.now = nil
	p.due = time.Now().Add(min(firstGap<<min(p.tries, 5), longestGap))
	p.tries++
	d.flying[p.id] = p
}

func (d *delivery) nextDue() time.Duration {
	next := longestGap
	for _, p := range d.flying {
		next = min(next, time.Until(p.due))
	}
	for _, due := range []time.Time{d.liveDue(), d.statusDue()} {
		if !due.IsZero() {
			next = min(next, time.Until(due))
		}
	}
	return max(next, time.Millisecond)
}

func (d *delivery) close() {
	if d.now != nil {
		d.now.chunks.close()
	}
}
