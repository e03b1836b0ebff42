package coordinator

import (
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// sentAtOnce returns the SENT mark of targets to which nothing stands in the way:
// their agents are ONLINE and have nothing to do. It is stored with the command,
// which saves a commit on the way to them; the dispatcher marks the others when it
// is their turn. all says that there are no others. done must be called when the
// ledger has the command, or nobody will.
func (c *Coordinator) sentAtOnce(cmd *musterv1.Command, targets []string) (mark []store.Op, all bool, done func()) {
	if cmd.Rollout != nil || len(targets) > maxMarks {
		return nil, false, func() {} // it is not known whose turn it is; or there is more than a row
	}
	row := &musterv1.SentMarks{}
	var agents []string
	for _, i := range c.ledger.promise(targets, c.fleet.ready(targets)) {
		row.Targets = append(row.Targets, uint32(i))
		agents = append(agents, targets[i])
	}
	if len(agents) == 0 {
		return nil, false, func() {}
	}
	op := store.Op{Kind: store.PutIfAbsent, Space: spaceHistory, Key: sentKey(cmd.Id, 0), Value: encode(row)}
	return []store.Op{op}, len(agents) == len(targets), func() { c.ledger.keepPromise(agents) }
}

// openAtOnce gives the ledger a command that was stored at rev with a mark of all
// its targets. The watch would do the same, and finds it done: it has to come round
// and reads everything from the store again.
func (c *Coordinator) openAtOnce(cmd *musterv1.Command, targets []string, rev store.Rev) error {
	oc, err := c.newOpen(cmd, targets)
	if err != nil {
		return err
	}
	for i := range oc.states {
		oc.states[i] = state(musterv1.Target_SENT)
	}
	oc.marks = 1
	if c.ledger.addBefore(oc, rev) {
		c.opened(oc)
	}
	return nil
}

// ready returns the indexes of those ids whose agent can be sent a command now.
func (f *fleet) ready(ids []string) (idx []int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i, id := range ids {
		if a := f.agents[id]; a != nil && a.status == musterv1.Agent_ONLINE && a.reachable() {
			idx = append(idx, i)
		}
	}
	return idx
}

// promise takes those of the agents at idx for a command that is being stored,
// which have no other: so there is room for it among what is in flight.
func (l *ledger) promise(agents []string, idx []int) (idle []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range idx {
		agent := agents[i]
		if _, taken := l.promised[agent]; taken || l.queues[agent] != nil {
			continue
		}
		l.promised[agent] = struct{}{}
		idle = append(idle, i)
	}
	return idle
}

// keepPromise ends what promise began.
func (l *ledger) keepPromise(agents []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, agent := range agents {
		delete(l.promised, agent)
	}
}
