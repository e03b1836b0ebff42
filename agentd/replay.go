package agentd

import (
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// replay takes a record that was read from the journal. A record may be
// missing that should come before it; what is known is then the best that can
// be said.
func (l *ledger) replay(r record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[r.ID]
	if h == nil {
		switch r.Kind {
		case kindReceived, kindStarted, kindEnded:
			h = &held{id: r.ID}
			l.add(h)
		default:
			return
		}
	}
	switch r.Kind {
	case kindReceived:
		c := &musterv1.Command{}
		if proto.Unmarshal(r.Command, c) == nil {
			h.command = c
		}
		h.received, h.lifetime = r.At, lifetime(h.command)
		if r.Run != "" {
			l.running(h)
			h.run, h.started = r.Run, r.At
		}
	case kindStarted:
		l.running(h)
		h.run, h.started = r.Run, r.At
	case kindGroup:
		h.group = r.Group
	case kindCancelled:
		h.cancelled = true
	case kindEnded:
		t := &musterv1.Target{}
		if proto.Unmarshal(r.Target, t) != nil || t.State < musterv1.Target_SUCCEEDED {
			t = &musterv1.Target{CommandId: r.ID, State: musterv1.Target_INTERRUPTED, Reason: "the agent's journal does not tell how it ended"}
		}
		t.JournalSeq = r.Seq
		l.final(h, t)
	case kindSettled:
		l.remove(h)
		return
	}
	h.told = true
}

// found is a command as an earlier agent left it, for one look at it: others
// may decide about it in the meantime.
func (l *ledger) found(h *held) held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *h
}

// again makes a command that an earlier agent left wait to be started; false:
// it is cancelled.
func (l *ledger) again(h *held, j job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.final != nil || h.cancelled {
		return false
	}
	if h.state != musterv1.Target_RECEIVED {
		h.state = musterv1.Target_RECEIVED
		l.waiting++
	}
	h.job = j
	return true
}
