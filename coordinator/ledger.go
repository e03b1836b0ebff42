package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// ledger holds every open command with one state per target, and each agent's
// queue of targets that are not final. It follows the store: the watch loop
// applies what was committed. Only RECEIVED and RUNNING are set without the
// store; agents tell them again when they register.
type ledger struct {
	inFlight int

	mu      sync.Mutex
	open    map[string]*openCommand
	queues  map[string]*agentQueue
	applied store.Rev
	moved   chan struct{} // closed and replaced when applied moves
}

// openCommand is a command that has targets which are not final.
type openCommand struct {
	cmd     *musterv1.Command // never changed
	targets []string          // sorted
	states  []state
	counts  counts
	marks   int           // SENT rows written so far
	ended   chan struct{} // closed when the command is closed
	closing bool          // the summary is on its way
	control musterv1.Command_State
	reason  string // why control is not OPEN
	plan    *plan  // nil: no rollout
	expiry  *time.Timer
	loss    *time.Timer
	turn    *time.Timer // wakes a rollout whose pause is over
	expires time.Time   // of this process's monotonic clock
}

// state is a Target_State, with a flag while a write that decides the target's
// next state is on its way. Nobody else may decide about it meanwhile.
type state uint8

const (
	claimed state = 0x80
	marking state = 0x40 // claimed for a SENT mark
)

func (s state) told() musterv1.Target_State { return musterv1.Target_State(s &^ (claimed | marking)) }
func (s state) isClaimed() bool             { return s&claimed != 0 }

func isFinal(s musterv1.Target_State) bool { return s >= musterv1.Target_SUCCEEDED }

// counts of targets by state.
type counts [musterv1.Target_LOST + 1]uint32

func (c *counts) proto() *musterv1.Counts {
	p := &musterv1.Counts{
		Queued: c[musterv1.Target_QUEUED], Sent: c[musterv1.Target_SENT], Received: c[musterv1.Target_RECEIVED],
		Running: c[musterv1.Target_RUNNING], Succeeded: c[musterv1.Target_SUCCEEDED], Failed: c[musterv1.Target_FAILED],
		TimedOut: c[musterv1.Target_TIMED_OUT], Interrupted: c[musterv1.Target_INTERRUPTED],
		Rejected: c[musterv1.Target_REJECTED], Cancelled: c[musterv1.Target_CANCELLED],
		Expired: c[musterv1.Target_EXPIRED], Lost: c[musterv1.Target_LOST],
	}
	for _, n := range c {
		p.Total += n
	}
	return p
}

func (c *counts) final() bool {
	for s := musterv1.Target_QUEUED; s < musterv1.Target_SUCCEEDED; s++ {
		if c[s] > 0 {
			return false
		}
	}
	return true
}

// ref is one target of one open command.
type ref struct {
	oc  *openCommand
	idx int
}

func (r ref) agent() string { return r.oc.targets[r.idx] }

// agentQueue is one agent's targets that are not final, oldest command first.
type agentQueue struct {
	entries []*entry
	retry   *time.Timer // wakes dispatch when an entry may be sent again
}

type entry struct {
	ref
	session   *session  // it was last sent on
	notBefore time.Time // do not send it again on that session before
	told      bool      // what was sent last is that it is cancelled
}

func newLedger(inFlight int) *ledger {
	return &ledger{inFlight: inFlight, open: map[string]*openCommand{}, queues: map[string]*agentQueue{}, moved: make(chan struct{})}
}

// add opens a command with the states that the store knows. A command that is
// open already keeps what it has.
func (l *ledger) add(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.open[oc.cmd.Id]; there {
		return false
	}
	l.open[oc.cmd.Id] = oc
	for i, s := range oc.states {
		oc.counts[s.told()]++
		if !isFinal(s.told()) {
			l.queueLocked(oc.targets[i]).insert(&entry{ref: ref{oc, i}})
		}
	}
	return true
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

// find returns the target of an open command.
func (l *ledger) find(id, agent string) (ref, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.findLocked(id, agent)
}

func (l *ledger) findLocked(id, agent string) (ref, bool) {
	oc := l.open[id]
	if oc == nil {
		return ref{}, false
	}
	i, ok := slices.BinarySearch(oc.targets, agent)
	return ref{oc, i}, ok
}

func (l *ledger) state(r ref) musterv1.Target_State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.oc.states[r.idx].told()
}

// setLocked moves a target on, and says whether that was a change. A final
// state stays, and so does a later one that is not final.
func (l *ledger) setLocked(r ref, to musterv1.Target_State) bool {
	old := r.oc.states[r.idx].told()
	if isFinal(old) || to <= old {
		return false
	}
	r.oc.counts[old]--
	r.oc.counts[to]++
	flag := r.oc.states[r.idx] & claimed
	if p := r.oc.plan; p != nil {
		if r.oc.states[r.idx]&marking != 0 {
			p.marking--
		}
		if old == musterv1.Target_QUEUED && !isFinal(to) {
			p.sent++
		}
		if isFinal(to) {
			p.endedLocked(r.idx, time.Now())
		}
	}
	if isFinal(to) {
		flag = 0
		l.dropLocked(r)
	}
	r.oc.states[r.idx] = state(to) | flag
	return true
}

// freeLocked takes the claim off a target.
func (r ref) freeLocked() {
	if r.oc.states[r.idx]&marking != 0 && r.oc.plan != nil {
		r.oc.plan.marking--
	}
	r.oc.states[r.idx] &^= claimed | marking
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
		if q.retry != nil {
			q.retry.Stop()
		}
		delete(l.queues, agent)
	}
}

// progress notes what an agent says of a target that is not final yet.
func (l *ledger) progress(r ref, to musterv1.Target_State) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.setLocked(r, to)
}

// finals notes final states that the store holds, and returns the commands that
// have ended by them, those that they halt, and those whose rollout goes on.
func (l *ledger) finals(ts []*musterv1.Target) (ended, halted, going []*openCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	plans := map[*openCommand]struct{}{}
	defer func() {
		for oc := range plans {
			switch {
			case oc.closing:
			case oc.overBudgetLocked():
				halted = append(halted, oc)
			default:
				going = append(going, oc)
			}
		}
	}()
	for _, t := range ts {
		r, ok := l.findLocked(t.CommandId, t.AgentId)
		if !ok || !l.setLocked(r, t.State) {
			continue
		}
		if r.oc.counts.final() && !r.oc.closing {
			r.oc.closing = true
			ended = append(ended, r.oc)
		} else if r.oc.plan != nil {
			plans[r.oc] = struct{}{}
		}
	}
	return ended, halted, going
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

// overBudget halts a command that has failed too often.
func (l *ledger) overBudget(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return oc.overBudgetLocked()
}

// endedAlready is for a command that was complete when it was loaded.
func (l *ledger) endedAlready(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if oc.closing || !oc.counts.final() {
		return false
	}
	oc.closing = true
	return true
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

// mayGo reports whether a command may be sent at all.
func (l *ledger) mayGo(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return oc.control == musterv1.Command_OPEN
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
// when its journal is not the one they were sent to.
func (l *ledger) claimSent(agent string) (refs []ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[agent]
	if q == nil {
		return nil
	}
	for _, e := range q.entries {
		if s := e.oc.states[e.idx]; s.told() >= musterv1.Target_SENT && !e.oc.cmd.Idempotent {
			e.oc.states[e.idx] |= claimed
			refs = append(refs, e.ref)
		}
	}
	return refs
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

// wakeAt arranges for wake to be called at t for an agent that still has a queue.
func (l *ledger) wakeAt(agent string, t time.Time, wake func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[agent]
	if q == nil || t.IsZero() {
		return
	}
	if q.retry != nil {
		q.retry.Stop()
	}
	q.retry = time.AfterFunc(time.Until(t), wake)
}

// close takes a command out whose summary is stored.
func (l *ledger) close(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oc := l.open[id]
	if oc == nil {
		return
	}
	delete(l.open, id)
	for i, s := range oc.states {
		if !isFinal(s.told()) {
			l.dropLocked(ref{oc, i})
		}
	}
	oc.stopTimers()
	close(oc.ended)
}

func (oc *openCommand) stopTimers() {
	for _, t := range []*time.Timer{oc.expiry, oc.loss, oc.turn} {
		if t != nil {
			t.Stop()
		}
	}
}

// stop ends all timers.
func (l *ledger) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, oc := range l.open {
		oc.stopTimers()
	}
	for _, q := range l.queues {
		if q.retry != nil {
			q.retry.Stop()
		}
	}
}

// command returns an open command as it is now, and the channel that is closed
// when it has ended.
func (l *ledger) command(id string) (*musterv1.Command, <-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oc := l.open[id]
	if oc == nil {
		return nil, nil, false
	}
	return oc.viewLocked(), oc.ended, true
}

func (oc *openCommand) viewLocked() *musterv1.Command {
	cmd := proto.CloneOf(oc.cmd)
	cmd.State, cmd.StateReason = oc.control, oc.reason
	cmd.Counts = oc.counts.proto()
	return cmd
}

// summary of a command whose targets are all final.
func (l *ledger) summary(oc *openCommand, now time.Time) *musterv1.CommandSummary {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := musterv1.Command_DONE
	if oc.control == musterv1.Command_CANCELLED {
		end = oc.control
	}
	return &musterv1.CommandSummary{State: end, Counts: oc.counts.proto(), EndTime: timestamppb.New(now)}
}

// statesFrom returns up to n targets after the given agent id with their states.
func (l *ledger) statesFrom(id, after string, n int) (agents []string, states []musterv1.Target_State, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oc := l.open[id]
	if oc == nil {
		return nil, nil, false
	}
	i, found := slices.BinarySearch(oc.targets, after)
	if found {
		i++
	}
	for ; i < len(oc.targets) && len(agents) < n; i++ {
		agents = append(agents, oc.targets[i])
		states = append(states, oc.states[i].told())
	}
	return agents, states, true
}

// reach notes that everything committed up to rev is applied.
func (l *ledger) reach(rev store.Rev) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rev > l.applied {
		l.applied = rev
		close(l.moved)
		l.moved = make(chan struct{})
	}
}

// reached returns nil when rev is applied, else the channel to wait on.
func (l *ledger) reached(rev store.Rev) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.applied >= rev {
		return nil
	}
	return l.moved
}

// get returns an open command, or nil.
func (l *ledger) get(id string) *openCommand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[id]
}

// ids lists the open commands.
func (l *ledger) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]string, 0, len(l.open))
	for id := range l.open {
		ids = append(ids, id)
	}
	return ids
}

// await waits until a commit is applied, so that whoever made it finds its
// effect at once.
func (l *ledger) await(ctx context.Context, rev store.Rev) error {
	for {
		moved := l.reached(rev)
		if moved == nil {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
