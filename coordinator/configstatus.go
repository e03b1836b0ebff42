package coordinator

import (
	"context"
	"errors"
	"slices"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// ListConfigStatus tells where a config stands on each agent that shall hold it,
// or that holds it and shall not. Those that have deleted it are told of only when
// they are asked for.
func (s *configService) ListConfigStatus(_ context.Context, req *musterv1.ListConfigStatusRequest) (*musterv1.ListConfigStatusResponse, error) {
	head := s.c.configs.catalog.head(req.Config)
	if head == nil {
		return nil, notFound("config", req.Config)
	}
	list := "status/" + req.Config
	after, err := pageStart(req.PageToken, list)
	if err != nil {
		return nil, err
	}
	size, bytes := pageSize(req.PageSize), 0
	resp := &musterv1.ListConfigStatusResponse{}
	for _, id := range behind(s.c.fleet.ids(), after) {
		st := s.c.configs.statusOf(id, head)
		if st == nil || !isListed(st, req.Statuses) {
			continue
		}
		s.c.configs.explainAbsence(id, st)
		if len(resp.Statuses) == size || bytes > maxPageBytes {
			resp.NextPageToken = pageToken(list, resp.Statuses[len(resp.Statuses)-1].AgentId)
			break
		}
		resp.Statuses = append(resp.Statuses, st)
		bytes += 300 + len(st.Reason)
	}
	return resp, nil
}

// isListed reports whether a status is among those that are asked for; none are
// all but those of agents that have nothing to do with the config any more.
func isListed(st *musterv1.ConfigStatus, asked []musterv1.ConfigStatus_Status) bool {
	if len(asked) > 0 {
		return slices.Contains(asked, st.Status)
	}
	return st.Status != musterv1.ConfigStatus_DELETED || st.WantedVersion > 0 || st.RunningVersion > 0
}

// explainAbsence gives a status without a reason the one why the agent does not
// tell of what is wanted: it cannot be offered anything.
func (k *configs) explainAbsence(agent string, m *musterv1.ConfigStatus) {
	told := m.Version == m.WantedVersion && m.Status != musterv1.ConfigStatus_APPLYING && m.Status != musterv1.ConfigStatus_UNSET
	if m.Reason == "" && m.WantedVersion != 0 && !told && !k.canTake(agent, m.Kind) {
		m.Reason = "the agent " + k.c.fleet.whyNotOffered(agent, m.Kind)
	}
}

// statusOf tells where a config stands on an agent, in the versions of the
// config; nil: the agent neither shall hold it nor holds it.
func (k *configs) statusOf(agent string, head *musterv1.Config) *musterv1.ConfigStatus {
	want := k.desired.of(agent)
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	if o == nil {
		o = &holding{}
	}
	if head.Kind == musterv1.Config_INSTANCE {
		return k.instanceStatus(agent, head.Name, want, o)
	}
	wanted := want.version(head.Kind, head.Name)
	h, held := o.find(head.Kind, head.Name)
	if !held && wanted == 0 {
		return nil
	}
	h.kind, h.name = head.Kind, head.Name
	return h.message(agent, k.shownWanted(want, h))
}

// instanceStatus tells how a part of the merged document stands: as the document.
func (k *configs) instanceStatus(agent, name string, want *wantSet, o *holding) *musterv1.ConfigStatus {
	h, _ := o.find(musterv1.Config_INSTANCE, instanceName)
	wanted := want.source(name)
	running := versionIn(k.desired.numbers.known(h.running), name)
	version := versionIn(k.desired.numbers.known(h.version), name)
	if wanted == 0 && running == 0 {
		return nil
	}
	m := h.message(agent, wanted)
	m.Kind, m.Name, m.Version, m.RunningVersion = musterv1.Config_INSTANCE, name, version, running
	if wanted == 0 && (want.doc != 0 || k.toGo(want, h)) {
		m.WantedVersion = deletedVersion
	}
	if err := k.desired.numbers.spoiled(want.doc); err != nil && wanted != 0 && wanted != running {
		m.Status, m.Version, m.Reason = musterv1.ConfigStatus_FAILED, wanted, cutText(err.Error(), maxReason)
	}
	return m
}

// unmerged are the statuses of those INSTANCE configs that an agent does not run
// as it shall, because its document cannot be merged.
func (k *configs) unmerged(agent string, want *wantSet) (all []*musterv1.ConfigStatus) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	if o == nil {
		return nil
	}
	for _, e := range want.sources {
		if m := k.instanceStatus(agent, e.name, want, o); m != nil && m.Status == musterv1.ConfigStatus_FAILED {
			all = append(all, m)
		}
	}
	return all
}

// shownWanted is the version that is wanted of what an agent holds; -1: it shall
// go; 0: it is left alone.
func (k *configs) shownWanted(want *wantSet, h heldConfig) int32 {
	if v := want.version(h.kind, h.name); v != 0 {
		return v
	}
	if k.toGo(want, h) {
		return deletedVersion
	}
	return 0
}

// GetAgentConfigs tells all that one agent shall hold and holds.
func (s *configService) GetAgentConfigs(ctx context.Context, req *musterv1.GetAgentConfigsRequest) (*musterv1.GetAgentConfigsResponse, error) {
	k := s.c.configs
	if !k.c.fleet.knows(req.AgentId) {
		return nil, notFound("agent", req.AgentId)
	}
	want := k.desired.of(req.AgentId)
	resp := &musterv1.GetAgentConfigsResponse{Configs: k.allOf(req.AgentId, want)}
	for _, e := range want.sources {
		resp.Sources = append(resp.Sources, &musterv1.ConfigSource{Config: e.name, Binding: e.asBinding(req.AgentId)})
	}
	if err := k.showDocument(ctx, req.AgentId, want, resp); err != nil {
		return nil, err
	}
	for _, m := range resp.Configs {
		k.explainAbsence(req.AgentId, m)
	}
	return resp, nil
}

// showDocument adds an agent's merged document, or why there is none.
func (k *configs) showDocument(ctx context.Context, agent string, want *wantSet, resp *musterv1.GetAgentConfigsResponse) error {
	if want.doc == 0 {
		return nil
	}
	doc, err := k.document(ctx, want)
	switch {
	case err == nil:
		resp.Instance = doc.content
	case ctx.Err() != nil:
		return err
	case errors.As(err, new(unmergeable)):
		explain(resp.Configs, err)
	default: // the rest is worth to be seen
		k.c.log.Error("instance document not merged", "agent", agent, "err", err)
		explain(resp.Configs, err)
	}
	return nil
}

// explain gives the document the reason why it cannot be offered.
func explain(list []*musterv1.ConfigStatus, err error) {
	for _, m := range list {
		if m.Kind == musterv1.Config_INSTANCE && m.Reason == "" {
			m.Reason = cutText(err.Error(), maxReason)
		}
	}
}

// allOf lists what an agent holds and shall hold, by kind and name.
func (k *configs) allOf(agent string, want *wantSet) (all []*musterv1.ConfigStatus) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &holding{}
	if known := k.holdings[agent]; known != nil {
		o = &holding{held: known.held}
	}
	for _, ref := range want.files {
		o.expect(musterv1.Config_PIPELINE, ref.name)
	}
	if want.doc != 0 {
		o.expect(musterv1.Config_INSTANCE, instanceName)
	}
	for _, h := range o.held {
		all = append(all, h.message(agent, k.shownWanted(want, h)))
	}
	return all
}

// expect adds a config without a status, unless there is one.
func (o *holding) expect(kind musterv1.Config_Kind, name string) {
	if _, ok := o.find(kind, name); !ok {
		o.put(heldConfig{kind: kind, name: name})
	}
}

// count fills in the counts of these configs, in one walk over the fleet.
func (k *configs) count(list ...*musterv1.Config) {
	by := make(map[string]*musterv1.ConfigCounts, len(list))
	for _, cfg := range list {
		cfg.Counts = &musterv1.ConfigCounts{}
		by[cfg.Name] = cfg.Counts
	}
	for _, id := range k.c.fleet.ids() {
		want := k.desired.of(id)
		if want == emptyWant {
			continue
		}
		k.mu.Lock()
		o := k.holdings[id]
		if o == nil {
			o = &holding{}
		}
		for _, ref := range want.files {
			if n := by[ref.name]; n != nil {
				o.count(n, musterv1.Config_PIPELINE, ref.name, ref.version)
			}
		}
		spoiled := k.desired.numbers.spoiled(want.doc) != nil
		for _, e := range want.sources {
			switch n := by[e.name]; {
			case n == nil:
			case spoiled && k.instanceStatus(id, e.name, want, o).GetStatus() == musterv1.ConfigStatus_FAILED:
				n.Total++
				n.Failed++
			default:
				o.count(n, musterv1.Config_INSTANCE, instanceName, want.doc)
			}
		}
		k.mu.Unlock()
	}
}

// count adds an agent to the counts of what it shall hold.
func (o *holding) count(n *musterv1.ConfigCounts, kind musterv1.Config_Kind, name string, version int32) {
	n.Total++
	s := o.standing(kind, name, version)
	if h, _ := o.find(kind, name); s == standsUnsure && h.status == musterv1.ConfigStatus_APPLIED {
		s = standsRight // as far as anybody knows
	} else if s == standsUnsure {
		s = standsFailed
	}
	switch s {
	case standsStarted:
		n.Applying++
	case standsRight:
		n.Applied++
	case standsFailed:
		n.Failed++
	default:
		n.Waiting++
	}
}
