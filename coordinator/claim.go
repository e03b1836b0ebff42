package coordinator

import (
	"slices"

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

// claimQueuedOf claims the targets of oc for these agents that were never sent.
func (l *ledger) claimQueuedOf(oc *openCommand, agents []string) (refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, agent := range agents {
		i, ok := slices.BinarySearch(oc.targets, agent)
		if ok && oc.states[i] == state(musterv1.Target_QUEUED) {
			oc.states[i] |= claimed
			refs = append(refs, ref{oc, i})
		}
	}
	return refs
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
func (l *ledger) claimSent(agent string, known map[string]bool) []ref {
	return l.claimOf(agent, func(e *entry) bool {
		return e.state().told() >= musterv1.Target_SENT && !e.oc.cmd.Idempotent && !known[e.oc.cmd.Id]
	})
}

// claimWaiting claims an agent's targets that were never sent.
func (l *ledger) claimWaiting(agent string) []ref {
	return l.claimOf(agent, func(e *entry) bool { return e.state() == state(musterv1.Target_QUEUED) })
}

// claimRest claims an agent's targets but for those that the caller has claimed;
// like claimOpen it is the last word.
func (l *ledger) claimRest(agent string, mine []ref) []ref {
	except := make(map[ref]struct{}, len(mine))
	for _, r := range mine {
		except[r] = struct{}{}
	}
	return l.claimOf(agent, func(e *entry) bool { _, has := except[e.ref]; return !has })
}

// claimOf claims those of an agent's targets that take chooses.
func (l *ledger) claimOf(agent string, take func(*entry) bool) (refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[agent]
	if q == nil {
		return nil
	}
	for _, e := range q.entries {
		if take(e) {
			e.oc.states[e.idx] |= claimed
			refs = append(refs, e.ref)
		}
	}
	return refs
}

func (e *entry) state() state { return e.oc.states[e.idx] }
