package coordinator

import (
	"fmt"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// counts says how many targets stand where by what they said of the new version,
// also those that went back since. mu is held, or it is the loop.
func (r *configRollout) counts() *musterv1.RolloutCounts {
	n := &musterv1.RolloutCounts{}
	for _, p := range r.at {
		if !p.left {
			countTarget(n, p.state)
		}
	}
	return n
}

// shownCounts are those that operators see: one that went back is that only, and
// one that was not reached until the end is skipped. They add up to the total.
func (r *configRollout) shownCounts(ended bool) *musterv1.RolloutCounts {
	n := &musterv1.RolloutCounts{}
	for _, p := range r.at {
		switch {
		case p.left:
		case p.back:
			n.Total++
			n.RolledBack++
		default:
			countTarget(n, p.shown(ended))
		}
	}
	return n
}

func countTarget(n *musterv1.RolloutCounts, state musterv1.RolloutTarget_State) {
	n.Total++
	switch state {
	case musterv1.RolloutTarget_WAITING:
		n.Waiting++
	case musterv1.RolloutTarget_OFFERED:
		n.Offered++
	case musterv1.RolloutTarget_APPLIED:
		n.Applied++
	case musterv1.RolloutTarget_FAILED:
		n.Failed++
	case musterv1.RolloutTarget_VANISHED:
		n.Vanished++
	case musterv1.RolloutTarget_SKIPPED:
		n.Skipped++
	}
}

// shown is the state that operators see.
func (p *rolloutPlace) shown(ended bool) musterv1.RolloutTarget_State {
	if ended && !p.reached() {
		return musterv1.RolloutTarget_SKIPPED
	}
	return p.state
}

// target is where a target stands, as operators see it.
func (r *configRollout) target(i int, ended bool) *musterv1.RolloutTarget {
	p := r.at[i]
	return &musterv1.RolloutTarget{AgentId: r.targets[i], State: p.shown(ended), PreviousVersion: p.previous, Reason: p.reason, RolledBack: p.back}
}

// failures of n counts against the budget: what failed, and what vanished.
func failures(n *musterv1.RolloutCounts, forgiven uint32) int {
	return int(n.Failed+n.Vanished) - int(forgiven)
}

// overBudget says why the rollout has to halt; "": it has not.
func (r *configRollout) overBudget(forgiven uint32) string {
	failures := failures(r.counts(), forgiven)
	if failures <= r.plan.maxFailures {
		return ""
	}
	return r.withReason(fmt.Sprintf("failures: %d, allowed: %d", failures, r.plan.maxFailures))
}

// inVain says that a rollout which is through has been applied by nobody, although
// its failures are allowed or forgiven; "": that is not so.
func (r *configRollout) inVain() string {
	n := r.counts()
	if n.Applied > 0 || n.Failed+n.Vanished == 0 {
		return ""
	}
	return r.withReason(fmt.Sprintf("none of %d agents applied the version", n.Total))
}

// withReason adds what one of the targets says.
func (r *configRollout) withReason(why string) string {
	for i, p := range r.at {
		if !p.left && p.reason != "" {
			return cutText(fmt.Sprintf("%s; agent %s: %s", why, r.targets[i], p.reason), maxReason)
		}
	}
	return why
}
