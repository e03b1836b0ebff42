package agentd

import (
	"slices"
	"time"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// liveEvery is how long output of a running program is collected before it is
// sent: a person does not notice, and a program that prints character by
// character does not fill the link.
const liveEvery = 250 * time.Millisecond

// live is the output of a program that runs, as far as it may be told: the
// heads of its streams. What is behind them is told when the program has ended.
type live struct {
	id    string
	heads [2]plugin.Head
	due   time.Time // when there is something to send; zero: not known of anything
}

// watch begins to send the output of a program.
func (o *outbox) watch(id string, stdout, stderr plugin.Head) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live = append(o.live, &live{id: id, heads: [2]plugin.Head{stdout, stderr}})
}

// grown is called by the program's readers. It keeps them for a moment only,
// however slow the link is: what is sent is read from what is kept.
func (o *outbox) grown(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.live {
		if l.id == id && l.due.IsZero() {
			l.due = time.Now().Add(liveEvery)
			o.wakeUp()
		}
	}
}

// unwatch is called when the program has ended. The rest of its output goes
// with its final Target.
func (o *outbox) unwatch(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live = slices.DeleteFunc(o.live, func(l *live) bool { return l.id == id })
}

// told is how many bytes of each stream of a command went over one link.
type told [2]int

// heard returns the next piece of output that is due, nil if there is none.
func (d *delivery) heard() *musterv1.OutputChunk {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, l := range d.live {
		if l.due.IsZero() || l.due.After(now) {
			continue
		}
		for s, head := range l.heads {
			off := d.told[l.id][s]
			if b := head.After(off, untilEdge(off)); len(b) > 0 {
				return &musterv1.OutputChunk{CommandId: l.id, Stream: musterv1.Stream(s + 1), Offset: uint32(off), Data: b}
			}
		}
		l.due = time.Time{}
	}
	return nil
}

func (d *delivery) chunkSent(c *musterv1.OutputChunk) {
	n := d.told[c.CommandId]
	n[c.Stream-1] += len(c.Data)
	d.told[c.CommandId] = n
}

// untilEdge is the most that a chunk at an offset holds. Chunks end at
// multiples of the chunk size: when output is sent again, cut into other
// pieces, each new chunk covers old ones whole.
func untilEdge(off int) int { return chunkSize - off%chunkSize }

// liveDue is when output is to be sent next, the zero time if nothing waits.
func (d *delivery) liveDue() (next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.live {
		if !l.due.IsZero() && (next.IsZero() || l.due.Before(next)) {
			next = l.due
		}
	}
	return next
}
