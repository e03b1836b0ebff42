package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of one registration.
const (
	maxRegister = 256 << 10
	maxBody     = 1<<20 + maxRegister // of any message: there must be room for a newer agent's fields
	maxTags     = 256
	maxTagBytes = 16 << 10
	maxHeld     = 4096
	maxTypes    = 1024
)

// onRegister checks a registration, stores what is new in it, and only then
// lets the agent in.
func (c *Coordinator) onRegister(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Register) error {
	s := sessionOf(p)
	if err := checkRegister(m, p.Identity(), s); err != nil {
		return err
	}
	if key := p.Key(); key != "" && !c.keys.allows(key, m.AgentId) {
		c.warn("refused: the key is not that of the agent", "agent", m.AgentId, "addr", p.Addr())
		quiet(p.Reply(env, &musterv1.Nack{Type: "muster.v1.Register", Reason: musterv1.Nack_REFUSED, Field: "agent_id",
			Detail: fmt.Sprintf("the key of this link is not approved for agent %q", m.AgentId)}))
		p.Close(errWrongKey)
		return nil
	}
	if c.fleet.full(m.AgentId, c.cfg.MaxAgents) {
		c.warn("a new agent was refused: the fleet has as many as the limit allows", "agent", m.AgentId, "addr", p.Addr())
		return &bus.NackError{Reason: musterv1.Nack_REFUSED, Field: "agent_id", Detail: fmt.Sprintf("%d agents are known, which is the limit", c.cfg.MaxAgents)}
	}
	reg := registration{session: s, msg: m, env: proto.CloneOf(env)}
	first := !s.tried
	s.tried = true
	if !first && !s.registers.take(registersPerSecond, registerBurst) || s.registered() == nil && !c.fleet.mayCome(m.AgentId) {
		c.metrics.dropped("register")
		c.turnAway(reg, errTooOften, 5*time.Second)
		return nil
	}
	c.meet(reg)
	return nil
}

// enter stores what is new in a registration whose link gets the agent, and then
// lets it in.
func (c *Coordinator) enter(r registration) {
	changed, broken := c.plan(&r)
	held := c.configs.registerOp(r.msg.AgentId, r.msg.Configs)
	if !changed && !broken && held == nil {
		c.admit(r)
		return
	}
	w := &write{size: proto.Size(r.row) + sizeOf(held), ops: fixed(append(held, putAgent(r.row))...)}
	if broken {
		c.warn("the agent's journal is not the one we knew; what was sent to it may not be sent again", "agent", r.msg.AgentId)
		w.ops = c.lostOps(w, r.msg, r.row, held)
	}
	w.done = func(_ []bool, err error) {
		if err != nil {
			c.log.Error("registration not stored", "agent", r.msg.AgentId, "err", err)
			c.turnAway(r, errNotRecorded, 2*time.Second)
			return
		}
		c.admit(r)
	}
	if err := c.enqueue(r.session, w); err != nil {
		c.metrics.dropped("register")
		c.turnAway(r, errNotRecorded, 2*time.Second)
	}
}

// registration is one Register on its way in.
type registration struct {
	session *session
	msg     *musterv1.Register
	env     *musterv1.Envelope
	row     *musterv1.Agent // that it makes
	agent   *agent          // that it was made for; nil: a new one
}

// plan makes the agent's row from its registration: whether it must be written, and
// whether its journal is not the one we knew.
func (c *Coordinator) plan(r *registration) (changed, broken bool) {
	m := r.msg
	row := &musterv1.Agent{
		Id: m.AgentId, Status: musterv1.Agent_ONLINE, Type: m.AgentType, Tags: m.Tags, Attributes: m.Attributes,
		StartupTime: m.StartupTime, CommandTypes: m.CommandTypes, Plugins: m.Plugins, RunId: m.RunId,
		RegisterTime: c.nowStamp(), LastSeen: c.nowStamp(), Capabilities: m.Capabilities,
		Hooks:   m.Capabilities&uint64(musterv1.AgentCapability_RUNS_HOOKS) != 0,
		Journal: &musterv1.JournalPosition{Epoch: m.GetJournal().GetEpoch(), Seq: m.GetJournal().GetSeq()},
	}
	row.ProtoReflect().SetUnknown(foreign(m.ProtoReflect().GetUnknown()))
	if row.Journal.Epoch == "" { // no journal: nothing outlives the process
		row.Journal.Epoch = "run:" + m.RunId
	}
	r.row = row
	c.fleet.mu.RLock()
	defer c.fleet.mu.RUnlock()
	a := c.fleet.agents[m.AgentId]
	r.agent = a
	if a == nil || a.row == nil {
		return true, false
	}
	row.RegisterTime, row.Maintenance = a.row.RegisterTime, a.row.Maintenance
	broken = a.row.Journal.GetEpoch() != row.Journal.Epoch || row.Journal.Seq < a.seq.Load()
	same := proto.CloneOf(a.row) // but for what every registration changes
	same.Status, same.LastSeen, same.RunId, same.Journal.Seq, same.Left = row.Status, row.LastSeen, row.RunId, row.Journal.Seq, row.Left
	return !proto.Equal(same, row), broken
}

// firstForeign is the first field number that is not ours (N47).
const firstForeign = 101

// foreign returns the fields of third parties among fields that are not known
// here. They stay with the agent untouched (N58).
func foreign(unknown protoreflect.RawFields) (out protoreflect.RawFields) {
	for len(unknown) > 0 {
		num, _, n := protowire.ConsumeField(unknown)
		if n < 0 {
			return out
		}
		if num >= firstForeign {
			out = append(out, unknown[:n]...)
		}
		unknown = unknown[n:]
	}
	return out
}

// lostOps settles what was sent to a journal that is gone, together with the
// row that names the new one. Of a command whose end the agent knows it can tell.
func (c *Coordinator) lostOps(w *write, m *musterv1.Register, row *musterv1.Agent, held []store.Op) func(context.Context) ([]store.Op, error) {
	known := map[string]bool{}
	for _, h := range m.Commands {
		known[h.CommandId] = isFinal(h.State)
	}
	return func(context.Context) ([]store.Op, error) {
		now := c.nowStamp()
		w.results = nil
		for _, r := range c.ledger.claimSent(m.AgentId, known) {
			w.results = append(w.results, resultOf(decided(r.oc.cmd.Id, m.AgentId, musterv1.Target_LOST, "the agent's journal is new or was set back: it cannot tell whether this ran", now)))
		}
		return append(slices.Clone(held), putAgent(row)), nil
	}
}

// turnAway asks an agent to come again later.
func (c *Coordinator) turnAway(r registration, why error, after time.Duration) {
	p := r.session.peer
	quiet(p.Reply(r.env, &musterv1.Goodbye{Reason: why.Error(), RetryAfter: durationpb.New(after)}))
	p.Close(why)
}

// full reports whether an agent would be one too many.
func (f *fleet) full(id string, limit int) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.agents) >= limit && f.agents[id] == nil
}

// mayCome reports whether an agent may register now; one that is not known may.
func (f *fleet) mayCome(id string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	return a == nil || a.came.take(comesPerSecond, registerBurst)
}

// admit answers a registration that is recorded, makes the agent ONLINE on its
// link, and lets dispatch go on.
func (c *Coordinator) admit(r registration) {
	s, m := r.session, r.msg
	c.fleet.mu.Lock()
	if r.agent != nil && c.fleet.agents[m.AgentId] != r.agent {
		c.fleet.mu.Unlock()
		c.turnAway(r, errForgotten, time.Second) // while it registered
		return
	}
	a := c.fleet.ensureLocked(m.AgentId)
	if a.row == nil {
		a.status = musterv1.Agent_SUSPECT // until its session is in place
	}
	if !sameFacts(a.row, r.row) {
		c.groups.touch(a.id)
	}
	a.row = r.row
	a.seq.Store(r.row.Journal.Seq)
	c.heard(a)
	interval := c.interval(len(c.fleet.agents))
	late := s.lateLocked(a)
	c.fleet.mu.Unlock()
	if late {
		return
	}

	s.mu.Lock()
	s.seq = m.SequenceNum
	s.mu.Unlock()
	c.configs.onRegister(a.id, s, m)
	s.who.Store(a)
	s.inTime()
	s.peer.Promote()
	settled := c.recall(a.id, m.Commands)
	err := s.peer.Reply(r.env, &musterv1.Registered{
		SessionId: s.id, Capabilities: remembers, HeartbeatInterval: durationpb.New(interval),
		ReconnectWindow: durationpb.New(c.cfg.ReconnectWindow), SettledIds: settled,
	})
	if err != nil {
		s.peer.Close(err)
	}

	c.fleet.mu.Lock()
	old := a.session
	if old != s && old != nil && a.holder.runID != m.RunId {
		a.conflict.gaveWay = a.holder.runID
	}
	a.session = s // from here on dispatch finds it: Registered comes first
	a.holder, a.parted = holderOf(m, s.peer), false
	c.changeStatusLocked(a, musterv1.Agent_ONLINE)
	c.watchSilenceLocked(a)
	c.fleet.mu.Unlock()
	if old != nil && old != s {
		c.warn("agent registered on a newer link; the old one is closed", "agent", a.id, "addr", s.peer.Addr(), "old", old.peer.Addr())
		old.peer.Close(errReplaced)
	}
	if key := s.peer.Key(); key != "" && !c.keys.allows(key, a.id) {
		s.peer.Close(ErrKeyRevoked) // while it registered
	}
	c.log.Info("agent registered", "agent", a.id, "addr", s.peer.Addr())
	if !takesCommands(r.row) {
		c.settle(func() []ref { return c.ledger.claimWaiting(a.id) }, musterv1.Target_REJECTED, noCommands)
	}
	c.dispatch.wake(a.id)
	c.configs.look.wake(a.id)
	if s.gone() { // it left before it had an agent to take offline
		c.onDown(s.peer, bus.ErrNoPeer)
	}
}

// lateLocked reports whether a registration that was stored comes too late to let
// its agent in: its link is gone, and that was noticed, or another one has the
// agent. fleet.mu is held.
func (s *session) lateLocked(a *agent) bool {
	return s.gone() && a.session != s && (a.session != nil || s.registered() != nil)
}

// gone reports whether the session's link has ended.
func (s *session) gone() bool {
	select {
	case <-s.peer.Done():
		return true
	default:
		return false
	}
}

// remembers is what an agent need not tell again (N61, N62).
const remembers = uint64(musterv1.CoordinatorCapability_REMEMBERS_ATTRIBUTES | musterv1.CoordinatorCapability_REMEMBERS_PIPELINE_STATUS |
	musterv1.CoordinatorCapability_REMEMBERS_INSTANCE_STATUS | musterv1.CoordinatorCapability_REMEMBERS_COMMANDS)

// noCommands is why a target is REJECTED without having been sent.
const noCommands = "the agent does not take commands"

// takesCommands reports whether commands may go to an agent (N60). One that
// names no capability at all is older than they are.
func takesCommands(row *musterv1.Agent) bool {
	return row.GetCapabilities() == 0 || row.Capabilities&uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS) != 0
}

// recall takes from a registration how far the agent is with its commands, and
// returns those it may forget.
func (c *Coordinator) recall(agent string, held []*musterv1.HeldCommand) (settled []string) {
	for _, h := range held {
		r, open := c.ledger.find(h.CommandId, agent)
		if !open {
			continue // ended or never known: its report is answered when it comes
		}
		if isFinal(h.State) {
			c.ledger.progress(r, musterv1.Target_RECEIVED) // so that it is not sent again before its report is in
			if s := c.ledger.state(r); isFinal(s) && s <= musterv1.Target_REJECTED {
				settled = append(settled, h.CommandId)
			}
			continue
		}
		if h.State == musterv1.Target_RECEIVED || h.State == musterv1.Target_RUNNING {
			c.ledger.progress(r, h.State)
		}
	}
	return settled
}

func checkRegister(m *musterv1.Register, identity string, s *session) error {
	bad := func(field, format string, args ...any) error {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: field, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case m.AgentId == "":
		return bad("agent_id", "an agent id is needed")
	case !agentIDForm.MatchString(m.AgentId):
		return bad("agent_id", "%.150q is not an agent id: 1 to 128 letters, digits, '.', '_', '-', the first a letter or digit", m.AgentId)
	case identity != "" && identity != m.AgentId:
		return bad("agent_id", "%q does not agree with the ZeroMQ identity %.150q of the link; leave the identity empty or make them equal", m.AgentId, identity)
	case len(m.RunId) == 0 || len(m.RunId) > 64:
		return bad("run_id", "a run id of 1 to 64 bytes is needed, random per process")
	case len(m.AgentType) > 64:
		return bad("agent_type", "%d bytes, at most 64", len(m.AgentType))
	case proto.Size(m) > maxRegister:
		return bad("", "registration of %d bytes, at most %d", proto.Size(m), maxRegister)
	case len(m.Tags) > maxTags:
		return bad("tags", "%d tags, at most %d", len(m.Tags), maxTags)
	case len(m.Commands) > maxHeld:
		return bad("commands", "%d commands, at most %d", len(m.Commands), maxHeld)
	case len(m.CommandTypes) > maxTypes:
		return bad("command_types", "%d types, at most %d", len(m.CommandTypes), maxTypes)
	case len(m.Plugins) > maxTypes:
		return bad("plugins", "%d plugins, at most %d", len(m.Plugins), maxTypes)
	case len(m.Configs) > maxHeldConfigs:
		return bad("configs", "%d configs, at most %d", len(m.Configs), maxHeldConfigs)
	case len(m.GetAttributes().GetExtras()) > maxTags:
		return bad("attributes.extras", "%d extras, at most %d", len(m.Attributes.Extras), maxTags)
	case !validTime(m.StartupTime):
		return bad("startup_time", "not a time")
	case len(m.GetJournal().GetEpoch()) > 64 || !utf8.ValidString(m.GetJournal().GetEpoch()):
		return bad("journal.epoch", "at most 64 bytes")
	}
	if sizeOfMap(m.Tags) > maxTagBytes || sizeOfMap(m.GetAttributes().GetExtras()) > maxTagBytes {
		return bad("tags", "tags and extras have at most %d bytes each", maxTagBytes)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Tags)) {
		if k == "" || len(k) > 128 || len(m.Tags[k]) > 1024 {
			return bad(entryPath("tags", k), "a tag has a name of 1 to 128 bytes and a value of at most 1024")
		}
	}
	if a := s.registered(); a != nil && a.id != m.AgentId {
		return &bus.NackError{Reason: musterv1.Nack_REFUSED, Field: "agent_id", Detail: fmt.Sprintf("this link is registered as %q", a.id)}
	}
	return nil
}
