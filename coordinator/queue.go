package coordinator

import (
	"slices"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// agentQueue is one agent's targets that are not final, oldest command first.
type agentQueue struct {
	entries []*entry
}

type entry struct {
	ref
	session   *session  // it was last sent on
	notBefore time.Time // do not send it again on that session before
	told      bool      // what was sent last is that it is cancelled
}

func (l *ledger) queueLocked(agent string) *agentQueue {
	q := l.queues[agent]
	if q == nil {
		q = &agentQueue{}
		l.queues[agent] = q
	}
	return q
}

// insert keeps commands in the order of their ids; nearly always at the end.
func (q *agentQueue) insert(e *entry) {
	i := len(q.entries)
	for i > 0 && q.entries[i-1].oc.cmd.Id > e.oc.cmd.Id {
		i--
	}
	q.entries = slices.Insert(q.entries, i, e)
}

// dropLocked takes a final target out of its agent's queue.
func (l *ledger) dropLocked(r ref) {
	agent := r.agent()
	q := l.queues[agent]
	if q == nil {
		return
	}
	q.entries = slices.DeleteFunc(q.entries, func(e *entry) bool { return e.ref == r })
	if len(q.entries) == 0 {
		delete(l.queues, agent)
	}
}

// queueOf says what waits for an agent.
func (l *ledger) queueOf(agent string) *musterv1.AgentQueue {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &musterv1.AgentQueue{}
	q := l.queues[agent]
	if q == nil {
		return out
	}
	for _, e := range q.entries {
		if e.oc.states[e.idx].told() == musterv1.Target_QUEUED {
			out.Waiting++
		} else {
			out.InFlight++
		}
	}
	out.OldestCommandId = q.entries[0].oc.cmd.Id
	return out
}

// delivery is what dispatch shall do for one agent.
type delivery struct {
	mark   []*entry // never sent: a SENT mark first
	send   []*entry // marked before: send at once
	cancel []*entry // sent, and cancelled since
}

// pick chooses what to send to an agent on session s at now: in the order of
// the queue, as far as the limit of commands in flight allows. What it returns
// in mark is claimed. next is when it is worth asking again, zero: no need.
func (l *ledger) pick(agent string, s *session, now time.Time, resend time.Duration) (d delivery, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[agent]
	if q == nil {
		return d, next
	}
	flying := 0
	for _, e := range q.entries {
		if flying == l.inFlight {
			break
		}
		switch st := e.oc.states[e.idx]; {
		case e.oc.control == musterv1.Command_CANCELLED && st.told() >= musterv1.Target_SENT:
			flying++
			if !e.told || e.session != s || !now.Before(e.notBefore) {
				d.cancel = append(d.cancel, e)
			}
		case e.oc.control != musterv1.Command_OPEN:
			if st.told() >= musterv1.Target_SENT {
				flying++ // it may be on its way; it is not sent again meanwhile
			}
		case st.isClaimed():
			flying++
		case st.told() == musterv1.Target_QUEUED:
			if !now.Before(e.oc.expires) {
				continue // the expiry is about to settle it
			}
			if e.oc.plan != nil {
				if n, _ := e.oc.placesLocked(now); n == 0 {
					continue // it is woken when it is its turn
				}
				e.oc.plan.marking++
			}
			flying++
			e.oc.states[e.idx] |= claimed | marking
			d.mark = append(d.mark, e)
		case st.told() == musterv1.Target_SENT:
			flying++
			if e.session == s && now.Before(e.notBefore) {
				if next.IsZero() || e.notBefore.Before(next) {
					next = e.notBefore
				}
				continue
			}
			if now.Before(e.oc.expires) { // an expired one is not worth sending again: the agent would refuse it
				e.session, e.notBefore = s, now.Add(resend)
				d.send = append(d.send, e)
				if next.IsZero() || e.notBefore.Before(next) {
					next = e.notBefore
				}
			}
		default:
			flying++
		}
	}
	return d, next
}

// sending notes on which session marked entries go out.
func (l *ledger) sending(es []*entry, s *session, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range es {
		e.session, e.notBefore = s, until
	}
}

// cancelling notes on which session an agent was told that a command is
// cancelled.
func (l *ledger) cancelling(e *entry, s *session, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.session, e.notBefore, e.told = s, until, true
}

// hold keeps an entry from being sent again on its session before until.
func (l *ledger) hold(r ref, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[r.agent()]; q != nil {
		for _, e := range q.entries {
			if e.ref == r {
				e.notBefore = until
			}
		}
	}
}
