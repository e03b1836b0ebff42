package coordinator

import (
	"fmt"
	"slices"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rolloutPlace is where one target of a rollout stands. All but previous follows
// from what the agent says, and whether it is there.
type rolloutPlace struct {
	state    musterv1.RolloutTarget_State
	left     bool      // its bindings do not give it the config any more: it does not count
	back     bool      // it runs its earlier version again
	previous int32     // that it ran when it was reached; 0: none
	offered  time.Time // by this process
	silent   time.Time // since when it is there, and owes a word
	begun    bool      // it says APPLYING
	mute     bool      // it owed a word for too long
	applied  time.Time
	reason   string
}

// reached reports whether the agent was offered the new version.
func (p *rolloutPlace) reached() bool { return p.state > musterv1.RolloutTarget_WAITING }

// watched reports whether the agent's going would change where it stands.
func (p *rolloutPlace) watched() bool {
	return p.state == musterv1.RolloutTarget_OFFERED || p.state == musterv1.RolloutTarget_VANISHED || !p.applied.IsZero()
}

// rolloutWord is what an agent says of a version that is rolled out.
type rolloutWord struct {
	state  musterv1.RolloutTarget_State // OFFERED: nothing yet; APPLIED or FAILED
	reason string
}

// wordOf takes from a status (nil: none) what it says of a version.
func wordOf(s *musterv1.ConfigStatus, version int32) rolloutWord {
	switch {
	case s.GetVersion() != version:
	case s.Status == musterv1.ConfigStatus_FAILED:
		return rolloutWord{musterv1.RolloutTarget_FAILED, s.Reason}
	case s.Status == musterv1.ConfigStatus_APPLIED && s.RunningVersion == version:
		return rolloutWord{state: musterv1.RolloutTarget_APPLIED}
	}
	return rolloutWord{state: musterv1.RolloutTarget_OFFERED}
}

// judge works out where a reached target stands: by its word, and by how long it
// cannot be reached. first is when nothing of it is known yet. One that is lost
// shortly after it has applied the version may well be lost of it.
func (p *rolloutPlace) judge(w rolloutWord, gone, vanish time.Duration, now time.Time, first bool) {
	was := p.state
	if p.mute = p.mute && w.state == musterv1.RolloutTarget_OFFERED; p.mute {
		w = rolloutWord{musterv1.RolloutTarget_FAILED, "it is there, and did not answer"}
	}
	p.state, p.reason = w.state, w.reason
	if p.state == musterv1.RolloutTarget_APPLIED && was == musterv1.RolloutTarget_OFFERED && !first {
		p.applied = now
	}
	if gone == 0 && now.Sub(p.applied) >= vanish {
		p.applied = time.Time{} // it is well with it
	}
	lost := p.state == musterv1.RolloutTarget_OFFERED || p.state == musterv1.RolloutTarget_APPLIED && now.Add(-gone).Sub(p.applied) < vanish
	if lost && gone >= vanish {
		p.state, p.reason = musterv1.RolloutTarget_VANISHED, fmt.Sprintf("it cannot be reached for %s", vanish)
	}
}

// hear keeps the time that an agent owes a word of the version: for as long as it
// is there, from its offer, and once again when it says APPLYING.
func (p *rolloutPlace) hear(s *musterv1.ConfigStatus, version int32, there bool, limit time.Duration, now time.Time) {
	begun := s.GetVersion() == version
	if !there || begun && !p.begun {
		p.silent = now
	}
	p.begun = begun
	p.mute = p.mute || there && now.Sub(p.silent) >= limit
}

// judgeBack works out whether a target runs its earlier version again. What it
// had still to say of the new one counts, too; what was known of one that has
// vanished does not.
func (p *rolloutPlace) judgeBack(w rolloutWord, s *musterv1.ConfigStatus, gone time.Duration) {
	if p.state == musterv1.RolloutTarget_OFFERED && w.state > p.state {
		p.state, p.reason = w.state, w.reason
	}
	heard := p.state != musterv1.RolloutTarget_VANISHED || gone == 0
	p.back = heard && p.previous != 0 && s.GetRunningVersion() == p.previous && s.Status != musterv1.ConfigStatus_APPLYING
}

// rolloutPlan turns the plan of a config's rollout into numbers for n targets;
// without one, all are reached at once.
func rolloutPlan(r *musterv1.Rollout, n int) (*plan, error) {
	if r == nil {
		r = &musterv1.Rollout{}
	}
	return newPlan("plan", r, max(n, 1))
}

// reach notes that agents were, or are about to be, offered the version. mu is
// held, or r is new.
func (r *configRollout) reach(offers *musterv1.RolloutOffers) {
	for n, agent := range offers.AgentIds {
		i, ok := slices.BinarySearch(r.targets, agent)
		if !ok || n >= len(offers.Previous) {
			continue
		}
		p := &r.at[i]
		p.state, p.previous, p.offered = musterv1.RolloutTarget_OFFERED, offers.Previous[n], time.Now()
		p.silent = p.offered
		r.unsure[i] = rolloutWord{}
	}
}

// reached returns the agents that the rollout has reached.
func (r *configRollout) reached() (agents []string) {
	for i, p := range r.at {
		if p.reached() {
			agents = append(agents, r.targets[i])
		}
	}
	return agents
}

// turn returns whose turn it is, as far as there are places, and when to ask
// again. reachable says whether an agent can be offered the version now.
func (r *configRollout) turn(now time.Time, forgiven uint32, reachable func(agent string) bool) (agents []string, later time.Time) {
	n := r.counts()
	places, later := r.plan.places(now, r.ever(), int(n.Offered), failures(n, forgiven))
	for i, p := range r.at {
		if len(agents) >= places {
			break
		}
		if !p.left && !p.reached() && reachable(r.targets[i]) {
			agents = append(agents, r.targets[i])
		}
	}
	return agents, later
}

// ever counts the targets that were ever reached, also those that left.
func (r *configRollout) ever() (n int) {
	for i := range r.at {
		if r.at[i].reached() {
			n++
		}
	}
	return n
}

// through reports whether nobody is left to wait for. Agents that are not
// expected get the version by the bindings when they come; but only once the
// canary is through, and at least one has applied it.
func (r *configRollout) through(expected func(agent string) bool) bool {
	n := r.counts()
	if n.Offered > 0 {
		return false
	}
	if n.Waiting == 0 {
		return true
	}
	if n.Applied == 0 || int(n.Applied+n.Failed+n.Vanished) < r.plan.canary {
		return false
	}
	for i, p := range r.at {
		if !p.left && !p.reached() && expected(r.targets[i]) {
			return false
		}
	}
	return true
}
