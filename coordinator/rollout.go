package coordinator

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const defaultVanish = time.Minute

// plan is a rollout in numbers, and how far it is. A command's is guarded by
// ledger.mu, that of a config belongs to the loop. After a restart all of it
// follows from the targets' states.
type plan struct {
	canary      int // 0: none
	batch       int // places of the sliding window
	maxFailures int
	pause       time.Duration
	vanish      time.Duration

	sent     int // targets that were ever marked SENT
	marking  int // SENT marks on their way
	forgiven int
	vanished map[int]struct{} // sent, not final, and their agent is gone for long
	busy     []time.Time      // places that are empty but stay so until then
	opened   time.Time        // when the canary was over; zero: it is not
	next     int              // where the search for the next target goes on
}

// newPlan turns a rollout into numbers for n targets; nil is no rollout. field is
// its path for the error.
func newPlan(field string, r *musterv1.Rollout, n int) (*plan, error) {
	if r == nil {
		return nil, nil
	}
	p := &plan{pause: r.PauseBetween.AsDuration(), vanish: defaultVanish, vanished: map[int]struct{}{}}
	if r.VanishAfter != nil {
		p.vanish = r.VanishAfter.AsDuration()
	}
	var f faults
	for _, x := range []struct {
		field, text string
		to          *int
		none        int
	}{
		{field + ".canary", r.Canary, &p.canary, 0},
		{field + ".batch", r.Batch, &p.batch, n},
		{field + ".max_failures", r.MaxFailures, &p.maxFailures, 0},
	} {
		v, err := countOf(x.text, n, x.none)
		if err != nil {
			f.add(x.field, "%v", err)
		}
		*x.to = v
	}
	if p.batch < 1 {
		f.add(field+".batch", "at least one target at a time is needed")
	}
	return p, f.err()
}

// countOf reads "5" or "10%" of n, rounded up; "" is none.
func countOf(text string, n, none int) (int, error) {
	if text == "" {
		return none, nil
	}
	digits, share := strings.CutSuffix(text, "%")
	v, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || share && v > 100 {
		return 0, fmt.Errorf("%.40q is neither a count such as \"5\" nor a share from \"0%%\" to \"100%%\"", text)
	}
	if share {
		return (int(v)*n + 99) / 100, nil
	}
	return int(v), nil
}

// placesLocked says how many more targets may be sent at now, and when that
// changes by itself (zero: only by a result).
func (oc *openCommand) placesLocked(now time.Time) (n int, later time.Time) {
	p := oc.plan
	failed := oc.failuresLocked() - len(p.vanished) // those keep their place as it is
	return p.places(now, p.sent+p.marking, oc.flyingLocked(), failed)
}

// places says how many more targets may be reached at now, and when that changes
// by itself (zero: only by a result). reached counts those that ever were, flying
// those that are under way, and failed those that have failed.
func (p *plan) places(now time.Time, reached, flying, failed int) (n int, later time.Time) {
	switch left := p.canary - reached; {
	case !p.opened.IsZero():
	case p.canary == 0 || left < 0: // none, or a restart after it was over
		p.opened = now
	case left > 0:
		return left, later
	case flying > 0:
		return 0, later
	default:
		p.opened = now.Add(p.pause)
	}
	if now.Before(p.opened) {
		return 0, p.opened
	}
	for len(p.busy) > 0 && !now.Before(p.busy[0]) {
		p.busy = p.busy[1:]
	}
	n = p.batch - flying - len(p.busy) - p.kept(failed)
	if n <= 0 && len(p.busy) > 0 {
		later = p.busy[0]
	}
	return max(n, 0), later
}

// kept counts the places that failed targets keep, so that a rollout which fails
// everywhere reaches no more than its canary and one window. The last place is
// never kept: a rollout within its budget goes on.
func (p *plan) kept(failed int) int { return min(max(failed, 0), p.batch-1) }

// flyingLocked counts targets that are sent, or about to be, and not final.
func (oc *openCommand) flyingLocked() int {
	c := &oc.counts
	return oc.plan.marking + int(c[musterv1.Target_SENT]+c[musterv1.Target_RECEIVED]+c[musterv1.Target_RUNNING])
}

// failuresLocked counts against the budget: what failed, and what vanished.
func (oc *openCommand) failuresLocked() int {
	c := &oc.counts
	return int(c[musterv1.Target_FAILED]+c[musterv1.Target_TIMED_OUT]+c[musterv1.Target_INTERRUPTED]+
		c[musterv1.Target_REJECTED]+c[musterv1.Target_LOST]) + len(oc.plan.vanished) - oc.plan.forgiven
}

// overBudgetLocked halts the command in memory, at once, when it has failed too
// often, and says whether that is new.
func (oc *openCommand) overBudgetLocked() bool {
	if oc.plan == nil || oc.control != musterv1.Command_OPEN || oc.failuresLocked() <= oc.plan.maxFailures {
		return false
	}
	oc.control = musterv1.Command_HALTED
	oc.reason = fmt.Sprintf("failures: %d, allowed: %d", oc.failuresLocked(), oc.plan.maxFailures)
	return true
}

// endedLocked gives a target's place back, after the pause.
func (p *plan) endedLocked(idx int, now time.Time) {
	delete(p.vanished, idx)
	if p.pause > 0 && !p.opened.IsZero() {
		p.busy = append(p.busy, now.Add(p.pause))
	}
}

// advance returns the agents whose turn it is, as far as there are places, and
// when to ask again. reachable says whether an agent could be sent to now: one
// that is not takes no place.
func (l *ledger) advance(oc *openCommand, now time.Time, reachable func(agent string) bool) (agents []string, later time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if oc.plan == nil || oc.control != musterv1.Command_OPEN {
		return nil, later
	}
	n, later := oc.placesLocked(now)
	for range oc.targets {
		if len(agents) >= n {
			break
		}
		i := oc.plan.next % len(oc.targets)
		oc.plan.next = i + 1
		if oc.states[i] == state(musterv1.Target_QUEUED) && reachable(oc.targets[i]) {
			agents = append(agents, oc.targets[i])
		}
	}
	return agents, later
}

// vanish looks for targets whose agent is gone, and returns the commands that
// this halts. gone says for how long an agent cannot be reached.
func (l *ledger) vanish(gone func(agent string) time.Duration) (halted []*openCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, oc := range l.open {
		if oc.plan == nil || oc.flyingLocked() == 0 {
			continue
		}
		for i, s := range oc.states {
			if st := s.told(); st < musterv1.Target_SENT || isFinal(st) {
				continue
			}
			if gone(oc.targets[i]) >= oc.plan.vanish {
				oc.plan.vanished[i] = struct{}{}
			} else {
				delete(oc.plan.vanished, i)
			}
		}
		if oc.overBudgetLocked() {
			halted = append(halted, oc)
		}
	}
	return halted
}

// goOnAll looks at every rollout: an agent that was its turn may have been full.
func (c *Coordinator) goOnAll() {
	for _, oc := range c.ledger.rollouts() {
		c.goOn(oc)
	}
}

func (l *ledger) rollouts() (ocs []*openCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, oc := range l.open {
		if oc.plan != nil && oc.control == musterv1.Command_OPEN {
			ocs = append(ocs, oc)
		}
	}
	return ocs
}

// goOn wakes the agents whose turn it is, now and when a pause is over.
func (c *Coordinator) goOn(oc *openCommand) {
	agents, later := c.ledger.advance(oc, time.Now(), func(a string) bool { return c.fleet.sessionOf(a) != nil })
	c.dispatch.wake(agents...)
	if !later.IsZero() {
		c.ledger.mu.Lock()
		defer c.ledger.mu.Unlock()
		if oc.turn != nil {
			oc.turn.Stop()
		}
		oc.turn = time.AfterFunc(time.Until(later), func() { c.goOn(oc) })
	}
}

// lookForVanished counts agents that left after they were sent a command.
func (c *Coordinator) lookForVanished() {
	now := time.Now()
	halted := c.ledger.vanish(func(id string) time.Duration { return c.fleet.goneFor(id, now) })
	for _, oc := range halted {
		c.recordHalt(oc)
	}
}

// goneFor says for how long an agent cannot be reached; 0: it can.
func (f *fleet) goneFor(id string, now time.Time) time.Duration {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	if a == nil || a.status == musterv1.Agent_ONLINE {
		return 0
	}
	return min(time.Duration(f.since(now)-a.seen.Load()), now.Sub(a.left))
}
