package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// session is the agent's side of the conversation with a coordinator: it
// registers on each new link, sends heartbeats, and gives up a link on which
// nothing is heard. It outlives its links; the sequence number goes on.
type session struct {
	log      *slog.Logger
	quiet    *slog.Logger                  // for what the coordinator says
	describe func(Link) *musterv1.Register // all but the sequence number
	dealer   Dealer                        // may be nil

	mu         sync.Mutex
	link       Link // nil: none
	registered bool
	sequence   uint64
	interval   time.Duration
	remembered uint64    // bits of CoordinatorCapability: what need not be told again
	heard      time.Time // when anything came last
	beat       time.Time // when the next heartbeat is due
	told       time.Time // when everything was told last because it was asked for, or has changed
	owed       bool      // it is to be told again, when it is time
	wake       chan struct{}
}

var (
	errSilent   = errors.New("agent: nothing heard for three heartbeat intervals")
	errStopping = fmt.Errorf("agent: stopping: %w", bus.ErrLeaving)
)

const (
	defaultInterval = 10 * time.Second
	longestInterval = time.Hour
	longestHoldOff  = time.Hour
	longestWindow   = time.Hour
	refusedHoldOff  = 30 * time.Second // what was refused once is refused again for a while
	maxRegister     = 60 << 10         // below the limit of a message before registration
	reportGap       = time.Second      // between two full reports on one link, however often they are asked for
)

func newSession(describe func(Link) *musterv1.Register, log *slog.Logger) *session {
	return &session{log: log, quiet: quietly(log), describe: describe, interval: defaultInterval, wake: make(chan struct{}, 1)}
}

// up begins on a new link.
func (s *session) up(link Link) {
	s.mu.Lock()
	s.link, s.registered, s.heard = link, false, time.Now()
	s.told, s.owed = time.Time{}, false // a new link is owed its Register at once
	s.mu.Unlock()
	s.register(link)
}

// down forgets a link, unless another one has come.
func (s *session) down(link Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == link {
		s.link, s.registered = nil, false
	}
}

// register tells the coordinator everything.
func (s *session) register(link Link) {
	m := s.describe(link)
	if err := s.sendNumbered(link, m); err != nil {
		s.log.Error("not registered", "err", err)
		link.Close(err)
	}
	s.wakeUp()
}

// sendNumbered queues a Register before anything with a higher number.
func (s *session) sendNumbered(link Link, m *musterv1.Register) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sequence++
	m.SequenceNum = s.sequence
	return link.Send(m)
}

// changed reports everything on the link there is, because something is not as
// it was told.
func (s *session) changed() {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	if link != nil {
		s.report(link)
	}
}

// report registers again: at once, or when the last report is reportGap ago. What
// asks for it meanwhile is answered by the same one.
func (s *session) report(link Link) {
	s.mu.Lock()
	s.owed = s.owed || s.link == link
	s.mu.Unlock()
	s.reportDue()
	s.wakeUp()
}

// reportDue tells everything if that is owed and may be done now.
func (s *session) reportDue() {
	s.mu.Lock()
	link, now := s.link, time.Now()
	if link == nil || !s.owed || now.Before(s.told.Add(reportGap)) {
		s.mu.Unlock()
		return
	}
	s.owed, s.told = false, now
	s.mu.Unlock()
	s.register(link)
}

// onRegistered begins the heartbeats.
func (s *session) onRegistered(link Link, m *musterv1.Registered) {
	if s.dealer != nil {
		s.dealer.SetReconnectWindow(min(max(0, m.ReconnectWindow.AsDuration()), longestWindow))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != link {
		return
	}
	s.interval = defaultInterval
	if d := m.HeartbeatInterval.AsDuration(); d > 0 {
		s.interval = min(d, longestInterval)
	}
	s.remembered = m.Capabilities
	if !s.registered {
		s.registered = true
		s.beat = time.Now().Add(jitter(s.interval))
	}
	s.wakeUp()
}

// hear notes that a message came.
func (s *session) hear(link Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == link {
		s.heard = time.Now()
	}
}

func (s *session) onHeartbeatAck(link Link, m *musterv1.HeartbeatAck) {
	if m.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0 {
		s.report(link)
	}
}

func (s *session) onGoodbye(m *musterv1.Goodbye) {
	s.quiet.Info("coordinator says goodbye", "reason", m.Reason, "retry_after", m.RetryAfter.AsDuration())
	s.holdOff(m.RetryAfter.AsDuration())
}

// onNack answers a refusal of what the session sent. A registration that is
// refused or wrong would be so again at once.
func (s *session) onNack(link Link, m *musterv1.Nack) {
	switch {
	case m.Reason == musterv1.Nack_NOT_REGISTERED:
		s.report(link)
	case m.Reason == musterv1.Nack_REFUSED, m.Type == registerType && m.Reason != musterv1.Nack_RETRY:
		s.quiet.Error("registration refused", "reason", m.Reason, "detail", m.Detail, "field", m.Field)
		s.holdOff(refusedHoldOff)
		link.Close(errors.New("agent: registration refused: " + m.Detail))
	case m.Type == registerType: // the coordinator is busy: on a later link
		s.holdOff(time.Second)
		link.Close(errors.New("agent: registration put off: " + m.Detail))
	}
}

func (s *session) holdOff(d time.Duration) {
	if s.dealer != nil && d > 0 {
		s.dealer.HoldOff(min(d, longestHoldOff))
	}
}

// run keeps the link alive, or gives it up, until ctx ends.
func (s *session) run(ctx context.Context) {
	timer := time.NewTimer(s.tick())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		s.reportDue()
		timer.Reset(s.tick())
	}
}

// tick does what is due and returns when the next thing is.
func (s *session) tick() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return longestInterval
	}
	now := time.Now()
	silent := s.heard.Add(3 * s.interval)
	if !now.Before(silent) {
		s.log.Warn("link given up", "addr", s.link.Addr(), "err", errSilent)
		s.link.Close(errSilent)
		s.link, s.registered = nil, false
		return longestInterval
	}
	next := silent.Sub(now)
	if s.owed {
		next = min(next, s.told.Add(reportGap).Sub(now))
	}
	if !s.registered {
		return next
	}
	if !now.Before(s.beat) {
		s.beatLocked()
		s.beat = now.Add(jitter(s.interval))
	}
	return min(s.beat.Sub(now), next)
}

// beatLocked sends a heartbeat. A coordinator that forgets something is told
// everything instead (N62, N71).
func (s *session) beatLocked() {
	if s.remembered&remembers != remembers {
		s.owed = true
		s.wakeUp()
		return
	}
	if s.link.Send(&musterv1.Heartbeat{SequenceNum: s.sequence + 1}) == nil {
		s.sequence++
	} // else the queue is full: whatever is in it shows that we live
}

// remembers is what a coordinator must remember if beats are to be compressed.
const remembers = uint64(musterv1.CoordinatorCapability_REMEMBERS_ATTRIBUTES | musterv1.CoordinatorCapability_REMEMBERS_PIPELINE_STATUS |
	musterv1.CoordinatorCapability_REMEMBERS_INSTANCE_STATUS | musterv1.CoordinatorCapability_REMEMBERS_COMMANDS)

// leave says goodbye on the link there is and waits until it is closed.
func (s *session) leave(limit time.Duration) {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	if link == nil {
		return
	}
	s.holdOff(longestHoldOff) // nobody is here to answer on a new one
	_ = link.Send(&musterv1.Goodbye{Reason: "the agent stops", Leaving: true})
	link.Close(errStopping)
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-link.Done():
	case <-t.C:
	}
}

func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// jitter is d, give or take 10 %.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

var (
	registerType = string((*musterv1.Register)(nil).ProtoReflect().Descriptor().FullName())
	targetType   = string((*musterv1.Target)(nil).ProtoReflect().Descriptor().FullName())
	feedbackType = string((*musterv1.ConfigFeedback)(nil).ProtoReflect().Descriptor().FullName())
)

// timestamp is nil for a time that is not known.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
