package coordinator

import (
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
