package coordinator

import (
	"fmt"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// This file is what rollouts see of agents.

// statusOf returns what an agent says of the config; nil: nothing.
func (rs *configRollouts) statusOf(r *configRollout, agent string) *musterv1.ConfigStatus {
	head := rs.c.configs.catalog.head(r.config)
	if head == nil {
		return nil
	}
	return rs.c.configs.statusOf(agent, head)
}

// canTake reports whether an agent can be offered a config now.
func (k *configs) canTake(agent string, kind musterv1.Config_Kind) bool {
	s := k.c.fleet.readySession(agent)
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	return s != nil && o != nil && o.session == s && o.takes(kind)
}

// expected reports whether to wait for an agent that cannot be offered a config
// now: it takes such, and is there, or was lost a short while ago.
func (f *fleet) expected(id string, kind musterv1.Config_Kind) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	if a == nil || a.row == nil || a.status == musterv1.Agent_OFFLINE || a.row.Maintenance {
		return false
	}
	return (&holding{caps: a.row.Capabilities}).takes(kind)
}

// answerTime is how long an agent may say nothing of an offer before that is
// shown. It may still be fetching, or run its programs: it is no failure.
const answerTime = time.Minute

// holdUp says what a rollout waits for that takes long, or may never come; "":
// nothing. It is for a person, who may abort it.
func (rs *configRollouts) holdUp(r *configRollout, now time.Time) string {
	mute, away := held{}, held{}
	n := r.counts()
	for i, p := range r.at {
		switch {
		case p.left:
		case p.state == musterv1.RolloutTarget_OFFERED && now.Sub(p.offered) >= answerTime:
			mute.add(r.targets[i])
		case n.Offered == 0 && !p.reached() && !rs.c.configs.canTake(r.targets[i], r.kind):
			away.add(r.targets[i])
		}
	}
	switch {
	case mute.n > 0:
		return fmt.Sprintf("waiting for %s: offered more than %v ago, and not answered", mute, answerTime)
	case n.Waiting > 0 && away.n == int(n.Waiting):
		return fmt.Sprintf("waiting for %s: %s", away, rs.c.fleet.whyNotOffered(away.first, r.kind))
	}
	return ""
}

// held is agents that a rollout waits for.
type held struct {
	n     int
	first string
}

func (h *held) add(agent string) {
	if h.n++; h.n == 1 {
		h.first = agent
	}
}

func (h held) String() string {
	if h.n == 1 {
		return "1 agent, " + h.first
	}
	return fmt.Sprintf("%d agents, the first is %s", h.n, h.first)
}

// whyNotOffered says why an agent cannot be offered a config now.
func (f *fleet) whyNotOffered(id string, kind musterv1.Config_Kind) string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch a := f.agents[id]; {
	case a == nil:
		return "it is not known"
	case a.status != musterv1.Agent_ONLINE:
		return "it is " + a.status.String()
	case a.row.GetMaintenance():
		return "it is under maintenance"
	case !(&holding{caps: a.row.GetCapabilities()}).takes(kind):
		return "it takes no " + kind.String() + " configs"
	default:
		return "it is being registered"
	}
}
