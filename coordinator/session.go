package coordinator

import (
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var (
	errNeverCame    = errors.New("coordinator: no registration in time")
	errTooOften     = errors.New("coordinator: the agent registers too often")
	errNotRecorded  = errors.New("coordinator: the registration could not be stored")
	errWrongKey     = errors.New("coordinator: the key is not that of the agent")
	errLeft         = errors.New("coordinator: the agent was stopped")
	errSilent       = errors.New("coordinator: nothing was heard from the agent for too long")
	nackUnknownPeer = &bus.NackError{Reason: musterv1.Nack_NOT_REGISTERED, Detail: "the first message of a link must be a Register"}
)

// A link may register this often, and an agent come on a new one. More costs
// writes, events and log lines; who does it is asked to come back later.
const (
	registersPerSecond = 1
	comesPerSecond     = 0.2
	registerBurst      = 20
	restartsPerSecond  = 1 // of output, likewise
	restartBurst       = 64
	// Where configs stand: what changes, each time an event, and how often all of
	// an agent's is written down at once; later writes wait for the next second.
	statusesPerSecond = 50
	statusBurst       = 4 * maxHeldConfigs
	savesPerSecond    = 1
	saveBurst         = 20
)

// onUp makes the session of a new link; it has no agent until it registers.
func (c *Coordinator) onUp(p *bus.Peer) {
	s := &session{id: ulid.Make().String(), peer: p}
	s.late = time.AfterFunc(unregistered, func() {
		if s.registered() == nil {
			p.Close(errNeverCame)
		}
	})
	p.Attach(s)
}

// inTime ends the wait for a registration, and lets go of the timer.
func (s *session) inTime() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
}

func (c *Coordinator) onDown(p *bus.Peer, why error) {
	s := sessionOf(p)
	s.inTime()
	a := s.registered()
	if a == nil {
		return
	}
	c.fleet.mu.Lock()
	if a.session != s {
		c.fleet.mu.Unlock()
		return // a newer link has the agent: a late close takes nothing from it
	}
	a.session, a.left = nil, time.Now()
	c.log.Info("agent left", "agent", a.id, "addr", p.Addr(), "err", why)
	if a.status == musterv1.Agent_ONLINE {
		c.changeStatusLocked(a, musterv1.Agent_SUSPECT)
		c.watchSilenceLocked(a)
	}
	next, waits := a.endContestLocked()
	c.fleet.mu.Unlock()
	if waits {
		c.enter(next)
	}
}

// onGoodbye takes an agent that was stopped in order OFFLINE at once. Else it
// only notes the reason; the close of the link says the rest.
func (c *Coordinator) onGoodbye(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Goodbye) error {
	s := sessionOf(p)
	a := s.registered()
	if a == nil || !m.Leaving {
		c.warn("agent says goodbye", "addr", p.Addr(), "reason", fmt.Sprintf("%.200q", m.Reason))
		return nil
	}
	c.heard(a)
	c.fleet.mu.Lock()
	mine := a.session == s
	if mine {
		a.session, a.left, a.parted = nil, time.Now(), true
		c.log.Info("agent was stopped", "agent", a.id, "addr", p.Addr(), "reason", fmt.Sprintf("%.200q", m.Reason))
		c.changeStatusLocked(a, musterv1.Agent_OFFLINE)
		c.watchSilenceLocked(a)
	}
	next, waits := a.endContestLocked()
	c.fleet.mu.Unlock()
	p.Close(errLeft)
	if mine {
		c.wentOffline(a)
	}
	if waits {
		c.enter(next)
	}
	return nil
}

func sessionOf(p *bus.Peer) *session { return p.Attached().(*session) }

// from returns the session of a registered link, or the Nack for others. Every
// message is a sign of life.
func (c *Coordinator) from(p *bus.Peer) (*session, *agent, error) {
	s := sessionOf(p)
	a := s.registered()
	if a == nil {
		return nil, nil, nackUnknownPeer
	}
	c.heard(a)
	return s, a, nil
}

func (c *Coordinator) onHeartbeat(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Heartbeat) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	ack := &musterv1.HeartbeatAck{SequenceNum: m.SequenceNum}
	s.mu.Lock()
	if m.SequenceNum != s.seq+1 { // N67: something was missed, tell all
		ack.Flags = uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE)
	}
	s.seq = m.SequenceNum
	s.mu.Unlock()
	c.revive(a, s)
	return quiet(p.Reply(env, ack))
}

// revive makes a SUSPECT agent that still has its link ONLINE again.
func (c *Coordinator) revive(a *agent, s *session) {
	c.fleet.mu.RLock()
	well := a.status == musterv1.Agent_ONLINE
	c.fleet.mu.RUnlock()
	if well {
		return
	}
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	if a.session == s {
		c.changeStatusLocked(a, musterv1.Agent_ONLINE)
		c.watchSilenceLocked(a)
		c.configs.look.wake(a.id)
	}
}

// enqueue hands a link's write to the batcher. No link may fill more than a part
// of the backlog, so that one which floods delays nobody's reports but its own.
func (c *Coordinator) enqueue(s *session, w *write) error {
	if s.writes.Load() >= int64(c.cfg.Backlog/16) || s.writeBytes.Load() >= int64(c.cfg.BacklogBytes/8) {
		return errBacklog
	}
	s.writes.Add(1)
	s.writeBytes.Add(int64(w.size))
	done := w.done
	w.done = func(skipped []bool, err error) {
		s.writes.Add(-1)
		s.writeBytes.Add(-int64(w.size))
		done(skipped, err)
	}
	err := c.batch.add(w)
	if err != nil {
		s.writes.Add(-1)
		s.writeBytes.Add(-int64(w.size))
	}
	return err
}

// quiet is for sends whose failure needs no action: the link is gone or full,
// and what matters is sent again.
func quiet(err error) error {
	if errors.Is(err, bus.ErrNoPeer) || errors.Is(err, bus.ErrQueueFull) {
		return nil
	}
	return err
}
