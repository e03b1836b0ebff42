package coordinator

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Two live links with one agent id are a reconnect, or two processes: a clone.
// A run id tells them apart, for it is random per process.
//
//   - The same run id: the newer link has the agent, at once.
//   - Another one: the older link is asked with a Probe. Does it not answer, its
//     process is gone, and the newer link has the agent. Does it answer, the
//     newer link is refused.
//   - A link that did not say ANSWERS_PROBES cannot be asked, and gives way. But
//     a run id that gave way and comes again while its successor is connected was
//     not gone: it is refused.
//   - While a conflict is fresh, the holder goes first: as long as it was heard a
//     short while ago, nobody else gets the id because its link breaks.

var (
	errReplaced = errors.New("coordinator: the agent registered on a newer link")
	errConflict = errors.New("coordinator: another process uses this agent id")
	errBusy     = errors.New("coordinator: another link of this agent id is being looked into")
)

const (
	probeTime     = time.Second      // for the answer to a Probe
	holderFirst   = 3 * time.Minute  // of silence that a holder may have before another gets its id
	conflictShown = 10 * time.Minute // after the last refusal
	conflictRetry = time.Minute      // told to the one that is refused
)

// holder is the process that has an agent's id, or had it last.
type holder struct {
	runID   string
	machine string
	host    string
	probes  bool // it answers them
}

func holderOf(m *musterv1.Register, p *bus.Peer) holder {
	return holder{
		runID: m.RunId, machine: m.GetAttributes().GetMachineId(), host: hostOf(p.Addr()),
		probes: m.Capabilities&uint64(musterv1.AgentCapability_ANSWERS_PROBES) != 0,
	}
}

// hostOf is an address without its port.
func hostOf(a net.Addr) string {
	if host, _, err := net.SplitHostPort(a.String()); err == nil {
		return host
	}
	return a.String()
}

// sameAs reports whether two processes may be one after the other on one host.
func (h holder) sameAs(other holder) bool {
	return h.runID == other.runID || h.machine == other.machine && h.host == other.host
}

// conflict is what is known of processes that share an agent's id.
type conflict struct {
	shown    *musterv1.AgentConflict
	last     time.Time // a refusal
	gaveWay  string    // run id of the process that lost its link to the holder
	deciding *contest
}

func (c *conflict) fresh(now time.Time) bool {
	return c.shown != nil && now.Sub(c.last) < conflictShown
}

// contest is a registration that waits until the link before it has answered.
type contest struct {
	agent *agent
	reg   registration
	old   *session
	probe string // id of its envelope
	asked time.Time
	timer *time.Timer
}

// verdict says what becomes of a registration that meets another link.
type verdict int

const (
	enters verdict = iota
	waits
	isRefused
	isPutOff
)

// meet decides about a registration for an id that may be in use. It never
// waits: when the older link has to be asked, a timer goes on.
func (c *Coordinator) meet(r registration) {
	c.fleet.mu.Lock()
	a := c.fleet.agents[r.msg.AgentId]
	loser, lives := registration{}, false
	if a != nil && a.holder.runID == r.msg.RunId { // the one that was asked answers on a new link
		loser, lives = a.endContestLocked()
	}
	v := c.meetLocked(a, r)
	c.fleet.mu.Unlock()
	if lives {
		c.refuseClone(a, loser)
	}
	switch v {
	case enters:
		c.enter(r)
	case isRefused:
		c.refuseClone(a, r)
	case isPutOff:
		c.turnAway(r, errBusy, 5*time.Second)
	}
}

func (c *Coordinator) meetLocked(a *agent, r registration) verdict {
	if a == nil || a.session == r.session {
		return enters
	}
	now, comes := time.Now(), holderOf(r.msg, r.session.peer)
	if d := a.conflict.deciding; d != nil {
		if d.reg.session != r.session && d.reg.msg.RunId != r.msg.RunId {
			return isPutOff
		}
		if d.reg.session != r.session { // the one that waits has come again
			d.reg.session.peer.Close(errReplaced)
		}
		d.reg = r
		return waits
	}
	silent := time.Duration(c.fleet.since(now) - a.seen.Load())
	if a.conflict.fresh(now) && !a.parted && !a.holder.sameAs(comes) && silent < holderFirst {
		return isRefused
	}
	switch {
	case a.session == nil || a.holder.runID == comes.runID:
		return enters
	case a.conflict.gaveWay == comes.runID:
		return isRefused
	case !a.holder.probes:
		return enters
	}
	c.askLocked(a, r, now)
	return waits
}

// askLocked sends the Probe.
func (c *Coordinator) askLocked(a *agent, r registration, now time.Time) {
	d := &contest{agent: a, reg: r, old: a.session, probe: ulid.Make().String(), asked: now}
	a.conflict.deciding = d
	d.timer = time.AfterFunc(probeTime, func() { c.onNoAnswer(d) })
	f, err := bus.Seal(&musterv1.Envelope{Id: d.probe}, &musterv1.Probe{})
	if err == nil {
		err = a.session.peer.SendFrames(f)
	}
	if err != nil {
		c.log.Debug("probe not sent", "agent", a.id, "err", err) // the timer decides
	}
}

// onNoAnswer is called when a probed link has had its time.
func (c *Coordinator) onNoAnswer(d *contest) {
	c.notePause()
	c.fleet.mu.Lock()
	if d.agent.conflict.deciding != d {
		c.fleet.mu.Unlock()
		return
	}
	if now := time.Now(); now.Sub(d.asked) > 2*probeTime { // this process stood still: the answer may lie unread
		d.asked = now
		d.timer.Reset(probeTime)
		c.fleet.mu.Unlock()
		return
	}
	d.agent.conflict.deciding = nil
	r := d.reg
	c.fleet.mu.Unlock()
	c.enter(r)
}

// onProbeAck keeps the link that was asked, and refuses the newer one.
func (c *Coordinator) onProbeAck(p *bus.Peer, env *musterv1.Envelope, _ *musterv1.ProbeAck) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	c.fleet.mu.Lock()
	d := a.conflict.deciding
	mine := d != nil && d.old == s && d.probe == env.InReplyTo
	if mine {
		a.conflict.deciding = nil
		d.timer.Stop()
	}
	c.fleet.mu.Unlock()
	if mine {
		c.refuseClone(a, d.reg)
	}
	return nil
}

// endContestLocked takes a contest out that is decided, and returns what waited
// for it.
func (a *agent) endContestLocked() (r registration, waited bool) {
	d := a.conflict.deciding
	if d == nil {
		return r, false
	}
	a.conflict.deciding = nil
	d.timer.Stop()
	return d.reg, true
}

// refuseClone turns the second of two processes away, and shows the conflict.
func (c *Coordinator) refuseClone(a *agent, r registration) {
	p, m := r.session.peer, r.msg
	c.fleet.mu.Lock()
	holds := a.holder.host
	if a.session != nil {
		holds = a.session.peer.Addr().String()
	}
	now := time.Now()
	news := !a.conflict.fresh(now) || a.conflict.shown.RefusedRunId != m.RunId
	a.conflict.last = now
	a.conflict.shown = &musterv1.AgentConflict{
		Address: holds, RefusedAddress: p.Addr().String(), RefusedMachineId: m.GetAttributes().GetMachineId(),
		RefusedRunId: m.RunId, Time: c.nowStamp(),
	}
	if news {
		c.feed.publish(&musterv1.Event{Kind: "agent", Agent: c.fleet.viewLocked(a)})
	}
	c.fleet.mu.Unlock()
	c.metrics.dropped("clone")
	c.warn("two processes use one agent id; the second is refused", "agent", a.id, "addr", holds, "refused", p.Addr())
	quiet(p.Reply(r.env, &musterv1.Nack{
		Type: "muster.v1.Register", Reason: musterv1.Nack_REFUSED, Field: "agent_id",
		Detail: fmt.Sprintf("agent id %q is in use by another process at %s; this one is at %s. If this is a copy of that agent, stop it and start it with an empty data folder and --id ID", a.id, holds, p.Addr()),
	}))
	quiet(p.Send(&musterv1.Goodbye{Reason: errConflict.Error(), RetryAfter: durationpb.New(conflictRetry)}))
	p.Close(errConflict)
}
