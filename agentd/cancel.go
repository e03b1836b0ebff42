package agentd

import (
	"errors"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// errCancelled is why a run was stopped, and the reason that people read.
var errCancelled = errors.New("cancelled")

// onCancel keeps a command from starting, or stops it. It may come before the
// command, more than once, and after the end: each time there is one end, and
// the first one counts.
func (a *Agent) onCancel(link Link, m *musterv1.Cancel) error {
	a.session.hear(link)
	if !name.MatchString(m.CommandId) {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "command_id", Detail: nameRule}
	}
	t := &musterv1.Target{
		CommandId: m.CommandId, AgentId: a.id, State: musterv1.Target_CANCELLED,
		Reason: "cancelled before it was started", EndTime: timestamp(time.Now()),
	}
	v, h := a.ledger.cancel(m.CommandId, t, a.ended)
	if v == isOld {
		v, h = a.ledger.cancel(m.CommandId, a.rejected(m.CommandId, "it is older than what this agent remembers, and may have run"), a.ended)
	}
	switch v {
	case isNew:
		a.log.Info("command cancelled", "cmd", m.CommandId)
		a.executor.drop(h)
	case isKnown:
		a.metrics.repeats.Inc()
		a.tell(h)
	case isOver:
		a.log.Debug("cancel of a settled command", "cmd", m.CommandId)
	case isMore: // unheard, it is sent again
		a.quiet.Warn("no room to note a cancel", "cmd", m.CommandId)
	}
	return nil
}

// cancel decides about a Cancel. A command that has not started ends with t; so
// does one that has not come, so that it never runs if it comes after all. The
// program of one that runs is stopped when the journal has it, so that a new
// start of the agent does not run it again.
func (l *ledger) cancel(id string, t *musterv1.Target, ended func(*held, error)) (verdict, *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	switch {
	case h == nil:
		settled, tooOld := l.journal.forgot(id)
		switch {
		case settled:
			return isOver, nil
		case len(l.held) >= l.limit:
			return isMore, nil
		case tooOld && t.State == musterv1.Target_CANCELLED:
			return isOld, nil
		}
		h = &held{id: id}
		l.add(h)
	case h.final != nil, h.cancelled:
		return isKnown, h
	case h.state == musterv1.Target_RUNNING:
		h.cancelled = true
		stop := h.stop
		l.journal.append(record{Kind: kindCancelled, ID: id}, func(error) {
			if stop != nil { // else an earlier agent left it, and it is ended all the same
				stop(errCancelled)
			}
		})
		return isNew, h
	}
	l.endLocked(h, didRun(h, t), ended)
	return isNew, h
}
