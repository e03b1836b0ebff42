package coordinator

import (
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
// applies what was committed, or openAtOnce does before it. Only RECEIVED and
// RUNNING are set without the store; agents tell them again when they register.
type ledger struct {
	*position
	inFlight int

	mu       sync.Mutex
	open     map[string]*openCommand
	queues   map[string]*agentQueue
	promised map[string]struct{} // agents whose command is being stored, see sentAtOnce
	read     store.Rev           // what was stored up to here is added by who reads the store
}

// openCommand is a command that has targets which are not final.
type openCommand struct {
	cmd     *musterv1.Command // never changed
	targets []string          // sorted
	states  []state
	places  places
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

func newLedger(inFlight int) *ledger {
	return &ledger{position: newPosition(), inFlight: inFlight, open: map[string]*openCommand{}, queues: map[string]*agentQueue{}, promised: map[string]struct{}{}}
}

// add opens a command with the states that the store knows. A command that is
// open already keeps what it has.
func (l *ledger) add(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addLocked(oc)
}

// addBefore is add unless the watch has come to rev, where the command was stored,
// or all that is open was read then: it was added, and may have ended since.
func (l *ledger) addBefore(oc *openCommand, rev store.Rev) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return rev > l.read && l.reached(rev) != nil && l.addLocked(oc)
}

// readAt is called before all that is open is read at rev or later.
func (l *ledger) readAt(rev store.Rev) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = max(l.read, rev)
}

func (l *ledger) addLocked(oc *openCommand) bool {
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

// mayGo reports whether a command may be sent at all.
func (l *ledger) mayGo(oc *openCommand) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return oc.control == musterv1.Command_OPEN
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
