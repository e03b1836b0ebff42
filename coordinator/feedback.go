package coordinator

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// reported takes what an agent says when it registers. It is lenient: what this
// program does not understand is left out, the rest counts.
func (k *configs) reported(list []*musterv1.ConfigStatus) []heldConfig {
	held := make([]heldConfig, 0, len(list))
	for _, m := range list {
		if !validKind(m.Kind) || !agentIDForm.MatchString(m.Name) {
			continue
		}
		h := k.heldOf(m)
		h.stale = true
		if h.kind == musterv1.Config_PIPELINE { // the numbers of documents may be anything
			h.version, h.running = max(h.version, deletedVersion), max(h.running, 0)
		}
		if _, known := musterv1.ConfigStatus_Status_name[int32(m.Status)]; !known {
			h.status = musterv1.ConfigStatus_UNSET
		}
		held = append(held, h)
	}
	slices.SortStableFunc(held, compareHeld)
	return slices.CompactFunc(held, func(a, b heldConfig) bool { return compareHeld(a, b) == 0 })
}

func validKind(kind musterv1.Config_Kind) bool {
	return kind == musterv1.Config_PIPELINE || kind == musterv1.Config_INSTANCE
}

// heldOf is a status in short. Names are those of the catalog, if it has them.
func (k *configs) heldOf(m *musterv1.ConfigStatus) heldConfig {
	h := heldConfig{name: m.Name, version: m.Version, running: m.RunningVersion, kind: m.Kind, status: m.Status, reason: cutText(m.Reason, maxReason)}
	if head := k.catalog.head(m.Name); head != nil {
		h.name = head.Name
	}
	return h
}

// registerOp returns the write of what a registering agent holds, if it is not
// what is stored.
func (k *configs) registerOp(agent string, list []*musterv1.ConfigStatus) []store.Op {
	held := k.reported(list)
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.holdings[agent]
	if o == nil {
		if len(held) == 0 {
			return nil
		}
		return []store.Op{k.heldOp(agent, held)}
	}
	held = o.claim(held)
	if slices.EqualFunc(o.held, held, heldConfig.sameReport) && !o.unsaved {
		return nil
	}
	return []store.Op{k.heldOp(agent, held)}
}

// heldOp is the write of what an agent holds. If the row would be too large,
// reasons are cut first.
func (k *configs) heldOp(agent string, held []heldConfig) store.Op {
	row := &musterv1.AgentConfigs{}
	for _, h := range held {
		row.Configs = append(row.Configs, h.row())
		if h.kind == musterv1.Config_INSTANCE && h.name == instanceName {
			for _, ref := range k.desired.numbers.known(h.running) {
				row.Running = append(row.Running, &musterv1.DocumentSource{Config: ref.name, Version: ref.version})
			}
		}
	}
	if proto.Size(row) > maxHeldRow {
		for _, m := range row.Configs {
			m.Reason = cutText(m.Reason, shortReason)
		}
		if proto.Size(row) > maxHeldRow {
			row.Running = nil
		}
	}
	return store.Op{Kind: store.Put, Space: spaceFleet, Key: heldKey(agent), Value: encode(row)}
}

// onRegister replaces what is known of an agent by what it says, once that is
// stored. Offers begin when its session is in place.
func (k *configs) onRegister(agent string, s *session, m *musterv1.Register) {
	held := k.reported(m.Configs)
	if len(held) < len(m.Configs) {
		k.c.metrics.dropped("config_status")
	}
	want := k.desired.of(agent)
	k.mu.Lock()
	o := k.holdingLocked(agent)
	changed := o.replace(held)
	o.session, o.caps, o.offers, o.want = s, m.Capabilities, nil, want
	o.markOurs()
	o.unsaved = false
	k.mu.Unlock()
	k.tell(agent, changed)
}

// onConfigFeedback takes what an agent says at once about configs it was offered
// (N83). What cannot be is refused; the rest of the message counts.
func (c *Coordinator) onConfigFeedback(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.ConfigFeedback) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	if len(m.Configs) > maxHeldConfigs {
		c.configs.m.refused.Inc()
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "configs", Detail: fmt.Sprintf("%d configs, at most %d", len(m.Configs), maxHeldConfigs)}
	}
	refused := c.configs.onFeedback(a.id, s, m.Configs)
	if refused == nil {
		return nil
	}
	c.configs.m.refused.Inc()
	c.warn("a status of a config was refused", "agent", a.id, "addr", p.Addr(), "err", refused)
	return refused
}

// onFeedback returns why the first status that cannot be is refused, or nil.
func (k *configs) onFeedback(agent string, s *session, list []*musterv1.ConfigStatus) (refused error) {
	var changed []heldConfig
	k.mu.Lock()
	o := k.holdings[agent]
	if o == nil || o.session != s {
		k.mu.Unlock()
		return nil // a newer link has told it all
	}
	for i, m := range list {
		field, why := k.cannotBe(o, m)
		if why != "" {
			if refused == nil {
				refused = &bus.NackError{Reason: musterv1.Nack_INVALID, Field: fmt.Sprintf("configs[%d].%s", i, field), Detail: why}
			}
			continue
		}
		k.m.statuses.Inc()
		h := k.heldOf(m)
		was, known := o.find(h.kind, h.name)
		f := o.offered(h.kind, h.name)
		h.ours = true
		h.sure = known && was.sure && was.version == h.version || f != nil && f.version == h.version
		if known && was.sameReport(h) && was.ours && was.sure == h.sure {
			continue
		}
		if !s.statuses.take(statusesPerSecond, statusBurst) {
			refused = &bus.NackError{Reason: musterv1.Nack_RETRY, Field: fmt.Sprintf("configs[%d]", i), Detail: "the statuses of this agent change too fast; tell where its configs stand a second later"}
			break
		}
		o.put(h)
		changed = append(changed, h)
	}
	k.mu.Unlock()
	if len(changed) == 0 {
		return refused
	}
	k.save(agent)
	k.tell(agent, changed)
	k.look.wake(agent)
	return refused
}

// cannotBe says what is wrong with a status: it must be of something that the
// agent holds or was offered, and of a version that there was.
func (k *configs) cannotBe(o *holding, m *musterv1.ConfigStatus) (field, why string) {
	if !validKind(m.Kind) {
		return "kind", fmt.Sprintf("%d is no kind of config", m.Kind)
	}
	if _, ok := musterv1.ConfigStatus_Status_name[int32(m.Status)]; !ok {
		return "status", fmt.Sprintf("%d is no status", m.Status)
	}
	if len(m.Reason) > maxReason {
		return "reason", fmt.Sprintf("%d bytes, at most %d", len(m.Reason), maxReason)
	}
	h, held := o.find(m.Kind, m.Name)
	if !held {
		h, held = findHeld(o.left, m.Kind, m.Name)
	}
	f := o.offered(m.Kind, m.Name)
	if !held && f == nil && (o.want == nil || o.want.version(m.Kind, m.Name) == 0) {
		return "name", fmt.Sprintf("%.150q was not offered to this agent", m.Name)
	}
	was := func(n int32) bool {
		return n == 0 || f != nil && n == f.version || held && (n == h.version || n == h.running) || k.wasGiven(m.Kind, m.Name, n)
	}
	if !was(m.RunningVersion) {
		return "running_version", fmt.Sprintf("%.150q has had no version %d", m.Name, m.RunningVersion)
	}
	if m.Version != deletedVersion && !was(m.Version) {
		return "version", fmt.Sprintf("%.150q has had no version %d", m.Name, m.Version)
	}
	if _, there := o.find(m.Kind, m.Name); !there && len(o.held) >= maxHeldConfigs {
		return "name", fmt.Sprintf("%d configs of this agent are known, which is the limit", len(o.held))
	}
	return "", ""
}

// wasGiven reports whether what has this name on the wire has had a version.
func (k *configs) wasGiven(kind musterv1.Config_Kind, name string, version int32) bool {
	if kind == musterv1.Config_INSTANCE {
		return name == instanceName && k.desired.numbers.known(version) != nil
	}
	return k.catalog.given(kind, name, version)
}

// markOurs notes which of the held were wanted of this agent.
func (o *holding) markOurs() {
	for i, h := range o.held {
		if !h.ours && o.want.version(h.kind, h.name) != 0 {
			o.held[i].ours = true
		}
	}
}

// save writes what an agent holds, soon: several changes are one write, and an
// agent that changes all the time is written once a second. A write that fails is
// made up for by the next, or when the agent registers.
func (k *configs) save(agent string) {
	k.mu.Lock()
	o := k.holdings[agent]
	if o == nil || o.saving {
		k.mu.Unlock()
		return
	}
	if o.session != nil && !o.session.saves.take(savesPerSecond, saveBurst) {
		o.unsaved = true
		k.unsaved[agent] = struct{}{}
		k.mu.Unlock()
		return
	}
	o.saving = true
	size := o.size()
	k.mu.Unlock()
	w := &write{size: size}
	w.ops = func(context.Context) ([]store.Op, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		o := k.holdings[agent]
		if o == nil {
			return nil, nil // forgotten meanwhile
		}
		o.saving, o.unsaved = false, false
		return []store.Op{k.heldOp(agent, o.held)}, nil
	}
	w.done = func(_ []bool, err error) {
		if err == nil {
			return
		}
		k.c.metrics.dropped("config_status")
		k.notSaved(agent)
	}
	if err := k.c.batch.add(w); err != nil {
		k.c.metrics.dropped("config_status")
		k.notSaved(agent)
	}
}

func (k *configs) notSaved(agent string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.holdings[agent]; o != nil {
		o.saving, o.unsaved = false, true
		k.unsaved[agent] = struct{}{}
	}
}

// saveAgain tries again what could not be written.
func (k *configs) saveAgain() {
	k.mu.Lock()
	agents := k.unsaved
	k.unsaved = map[string]struct{}{}
	k.mu.Unlock()
	for a := range agents {
		k.save(a)
	}
}

// tell hands new statuses to whoever follows them.
func (k *configs) tell(agent string, changed []heldConfig) {
	if len(changed) == 0 {
		return
	}
	k.c.feed.publishIfWatched(func() (events []*musterv1.Event) {
		want := k.desired.of(agent)
		for _, h := range changed {
			events = append(events, &musterv1.Event{Kind: "config_status", ConfigStatus: h.message(agent, k.shownWanted(want, h))})
		}
		return events
	})
	var all []*musterv1.ConfigStatus
	for _, h := range changed {
		all = append(all, k.inTermsOfConfigs(agent, h)...)
	}
	if len(all) > 0 {
		k.rollouts.statusChanged(agent, all)
	}
}

// inTermsOfConfigs turns the status of the merged document into those of the
// INSTANCE configs it was merged of; others stay what they are.
func (k *configs) inTermsOfConfigs(agent string, h heldConfig) (all []*musterv1.ConfigStatus) {
	if h.kind != musterv1.Config_INSTANCE {
		return []*musterv1.ConfigStatus{h.message(agent, 0)}
	}
	running := k.desired.numbers.known(h.running)
	for _, ref := range k.desired.numbers.known(h.version) {
		m := h.message(agent, 0)
		m.Name, m.Version, m.RunningVersion = ref.name, ref.version, versionIn(running, ref.name)
		all = append(all, m)
	}
	return all
}

func versionIn(refs []configRef, name string) int32 {
	for _, r := range refs {
		if r.name == name {
			return r.version
		}
	}
	return 0
}

// loadHeld reads what agents told last.
func (k *configs) loadHeld(ctx context.Context) error {
	return k.c.each(ctx, spaceFleet, heldPrefix, func(kv store.KV) error {
		agent, _ := splitKey(kv.Key, heldPrefix)
		row := &musterv1.AgentConfigs{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			k.c.log.Error("configs of an agent not read; they are known again when it registers", "agent", agent, "err", err)
			return nil
		}
		held := make([]heldConfig, 0, len(row.Configs))
		for _, m := range row.Configs {
			h := k.heldOf(m)
			h.ours, h.sure, h.stale = m.WantedVersion&rowOurs != 0, m.WantedVersion&rowSure != 0, true
			held = append(held, h)
			if h.kind == musterv1.Config_INSTANCE && h.name == instanceName && len(row.Running) > 0 {
				k.desired.numbers.adopt(h.running, row.Running)
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.holdingLocked(agent).held = held
		return nil
	})
}
