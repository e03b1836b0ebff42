package coordinator

import (
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// freeLocked takes the claim off a target.
func (r ref) freeLocked() {
	if r.oc.states[r.idx]&marking != 0 && r.oc.plan != nil {
		r.oc.plan.marking--
	}
	r.oc.states[r.idx] &^= claimed | marking
}

// sent notes that SENT marks are stored.
func (l *ledger) sent(refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range refs {
		l.setLocked(r, musterv1.Target_SENT)
		r.freeLocked()
	}
}

// unsend takes back SENT marks that were stored and are deleted again, before
// anything was sent.
func (l *ledger) unsend(refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range refs {
		if r.oc.states[r.idx].told() == musterv1.Target_SENT {
			r.oc.counts[musterv1.Target_SENT]--
			r.oc.counts[musterv1.Target_QUEUED]++
			r.oc.plan.sent--
			r.oc.states[r.idx] = state(musterv1.Target_QUEUED)
		}
	}
}

// unclaim gives back targets whose write did not happen.
func (l *ledger) unclaim(refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range refs {
		r.freeLocked()
	}
}

// claimQueued claims every target of oc that was never sent.
func (l *ledger) claimQueued(oc *openCommand) []ref {
	return l.claim(oc, func(s state) bool { return s == state(musterv1.Target_QUEUED) })
}

// claimOpen claims every target of oc that is not final. Unlike the others it
// also takes those whose write is on its way: it is the last word.
func (l *ledger) claimOpen(oc *openCommand) []ref {
	return l.claim(oc, func(s state) bool { return !isFinal(s.told()) })
}

func (l *ledger) claim(oc *openCommand, take func(state) bool) (refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range oc.states {
		if take(s) {
			oc.states[i] |= claimed
			refs = append(refs, ref{oc, i})
		}
	}
	return refs
}

// claimSent claims an agent's targets that were sent and may not be sent again
// when its journal is not the one they were sent to; but not those whose end the
// agent knows.
func (l *ledger) claimSent(agent string, known map[string]bool) (refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[agent]
	if q == nil {
		return nil
	}
	for _, e := range q.entries {
		if s := e.oc.states[e.idx]; s.told() >= musterv1.Target_SENT && !e.oc.cmd.Idempotent && !known[e.oc.cmd.Id] {
			e.oc.states[e.idx] |= claimed
			refs = append(refs, e.ref)
		}
	}
	return refs
}
