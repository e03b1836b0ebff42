package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// expected reports whether to wait for an agent that cannot be offered a config
// now: it takes such, and is there, or was lost a short while ago.
func (f *fleet) expected(id string, kind musterv1.Config_Kind) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	if a == nil || a.row == nil || a.status == musterv1.Agent_OFFLINE || a.row.Maintenance {
		return false
	}
	return takesConfigs(a.row.Capabilities, kind)
}

// slowAnswer is how long an agent may say nothing of an offer before that is
// shown. It may still be fetching, or run its programs: it is no failure yet.
const slowAnswer = time.Minute

const (
	fetchTime = 10 * time.Minute // agents may take to get content
	checkTime = 30 * time.Second // and a hook, when its version says nothing else
)

// answerTime is how long a target that is there may say nothing of the version:
// to fetch it, to run both hooks, and a minute.
func (rs *configRollouts) answerTime(ctx context.Context, r *configRollout) (time.Duration, error) {
	hook := maxCheckTime // of a merged document: that of any config in it
	if r.kind == musterv1.Config_PIPELINE {
		v, err := rs.c.configs.version(ctx, configRef{r.config, r.version})
		switch {
		case status.Code(err) == codes.NotFound: // nobody will be offered it
		case err != nil:
			return 0, err
		default:
			hook = cmp.Or(v.File.GetTimeout().AsDuration(), checkTime)
		}
	}
	return fetchTime + 2*hook + time.Minute, nil
}

// holdUp says what a rollout waits for that takes long, or may never come; "":
// nothing. It is for a person, who may abort it.
func (rs *configRollouts) holdUp(r *configRollout, now time.Time) string {
	var lost, mute, away held
	n := r.counts()
	for i, p := range r.at {
		there := p.left || rs.c.configs.canTake(r.targets[i], r.kind)
		switch {
		case p.left:
		case p.state == musterv1.RolloutTarget_OFFERED && !there:
			lost.add(r.targets[i])
		case p.state == musterv1.RolloutTarget_OFFERED && now.Sub(p.offered) >= slowAnswer:
			mute.add(r.targets[i])
		case n.Offered == 0 && !p.reached() && !there:
			away.add(r.targets[i])
		}
	}
	switch {
	case lost.n > 0:
		return fmt.Sprintf("waiting for %s: it %s", lost, rs.c.fleet.whyNotOffered(lost.first, r.kind))
	case mute.n > 0:
		return fmt.Sprintf("waiting for %s: offered more than %v ago, %s", mute, slowAnswer, rs.lastWord(r, mute.first))
	case n.Waiting > 0 && away.n == int(n.Waiting):
		return fmt.Sprintf("waiting for %s: it %s", away, rs.c.fleet.whyNotOffered(away.first, r.kind))
	}
	return ""
}

// lastWord is what an agent says of the version, although that is no end: its file
// may be gone from the host.
func (rs *configRollouts) lastWord(r *configRollout, agent string) string {
	s := rs.statusOf(r, agent)
	if s.GetVersion() != r.version {
		return "and not answered"
	}
	return cutText(fmt.Sprintf("and says %s with version %d running: %s", s.Status, s.RunningVersion, s.Reason), maxReason/2)
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
