package simagent

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// handlers is all that an agent can be told.
var handlers = map[string]func(a *agent, l *link, body []byte) error{}

func init() {
	handle((*agent).onRegistered)
	handle((*agent).onHeartbeatAck)
	handle((*agent).onCommand)
	handle((*agent).onCancel)
	handle((*agent).onTargetAck)
	handle((*agent).onConfigOffer)
	handle((*agent).onConfigContent)
	handle((*agent).onNack)
	handle((*agent).onGoodbye)
}

// handle registers fn for messages of type M. An error of fn breaks the link.
func handle[M proto.Message](fn func(a *agent, l *link, m M) error) {
	var zero M
	typ := zero.ProtoReflect().Type()
	handlers[string(typ.Descriptor().FullName())] = func(a *agent, l *link, body []byte) error {
		m := typ.New().Interface().(M)
		if err := proto.Unmarshal(body, m); err != nil {
			return fmt.Errorf("%s: %w", typ.Descriptor().FullName(), err)
		}
		return fn(a, l, m)
	}
}

// take hands a message to its handler, which runs with a.mu held. A message of an
// unknown type is counted: the coordinator may be newer.
func (a *agent) take(l *link, m message) error {
	fn := handlers[string(m.name)]
	if fn == nil {
		a.fleet.tally.fail("unknown_type")
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard = time.Now()
	return fn(a, l, m.body)
}

// register tells the coordinator everything.
func (a *agent) register(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registerLocked(l)
}

func (a *agent) registerLocked(l *link) {
	a.sequence++
	f := a.fleet
	l.push(&musterv1.Register{
		AgentId: a.id, RunId: f.runID, AgentType: "simulated",
		Attributes: &musterv1.Attributes{Version: "sim", Hostname: a.id, Os: runtime.GOOS, Arch: runtime.GOARCH, Ip: ipOf(l), Pid: uint32(os.Getpid())},
		Tags:       f.cfg.Tags, CommandTypes: f.cfg.Types,
		StartupTime:  timestamppb.New(f.startTime()),
		Capabilities: f.capabilities(),
		Journal:      &musterv1.JournalPosition{Epoch: f.runID, Seq: a.journal.position},
		Commands:     a.journal.list(),
		Configs:      a.configsLocked(),
		SequenceNum:  a.sequence,
	})
}

func ipOf(l *link) string {
	host, _, _ := net.SplitHostPort(l.nc.LocalAddr().String()) // "" when the network has no ports
	return host
}

func (a *agent) onRegistered(l *link, m *musterv1.Registered) error {
	a.window = m.ReconnectWindow.AsDuration()
	told := defaultInterval
	if d := m.HeartbeatInterval.AsDuration(); d > 0 {
		told = d
	}
	a.interval = cmp.Or(a.fleet.cfg.BeatInterval, told)
	a.patience = missedBeats * max(a.interval, told) // a load of many beats is no reason to leave sooner
	for _, id := range m.SettledIds {
		if a.journal.settle(id) != nil {
			a.fleet.tally.acked.Add(1)
		}
	}
	if a.registered {
		return nil
	}
	a.registered = true
	a.fleet.tally.registered.Add(1)
	a.fleet.tally.registrations.Add(1)
	a.fleet.tally.register.add(a.heard.Sub(a.linked))
	l.nc.SetReadDeadline(time.Time{})
	for _, e := range a.journal.held {
		if isFinal(e.state) {
			e.tries = 0
			a.tellLocked(e)
		}
	}
	a.beatAfterLocked(max(1, rand.N(a.interval))) // so that a fleet which came at once does not beat at once
	return nil
}

func (a *agent) beatAfterLocked(d time.Duration) {
	if a.beat == nil {
		a.beat = time.AfterFunc(d, a.onBeat)
		return
	}
	a.beat.Reset(d)
}

// onBeat is called when a beat is due: it sends that and what was not
// acknowledged for long, or gives the link up.
func (a *agent) onBeat() {
	if l := a.beatOnce(); l != nil {
		l.flush()
	}
}

func (a *agent) beatOnce() *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, now := a.link, time.Now()
	if l == nil || !a.registered || a.ended {
		return nil
	}
	if now.Sub(a.heard) >= a.patience {
		l.fail(errSilent)
		return nil
	}
	a.sequence++
	l.push(&musterv1.Heartbeat{SequenceNum: a.sequence})
	a.fleet.tally.beats.Add(1)
	a.beaten = now
	for _, e := range a.journal.held {
		if isFinal(e.state) && now.After(e.due) {
			a.fleet.tally.resent.Add(1)
			a.tellLocked(e)
		}
	}
	a.beatAfterLocked(a.interval - a.interval/10 + rand.N(a.interval/5+1))
	return l
}

func (a *agent) onHeartbeatAck(l *link, m *musterv1.HeartbeatAck) error {
	a.fleet.tally.beatAcks.Add(1)
	if m.SequenceNum == a.sequence {
		a.fleet.tally.beat.add(a.heard.Sub(a.beaten))
	}
	if m.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0 {
		a.registerLocked(l)
	}
	return nil
}

func (a *agent) onGoodbye(_ *link, m *musterv1.Goodbye) error {
	a.fleet.tally.fail("goodbye")
	a.holdOffLocked(m.RetryAfter.AsDuration())
	return nil
}

const (
	refusedHoldOff = 30 * time.Second // what was refused once is refused again for a while
	busyHoldOff    = time.Second
)

var (
	registerName = string((*musterv1.Register)(nil).ProtoReflect().Descriptor().FullName())
	targetName   = string((*musterv1.Target)(nil).ProtoReflect().Descriptor().FullName())
)

func (a *agent) onNack(l *link, m *musterv1.Nack) error {
	a.fleet.tally.fail("nack_" + strings.ToLower(m.Reason.String()))
	a.fleet.complain.Do(func() {
		a.fleet.cfg.Log.Warn("the coordinator did not take a message", "agent", a.id, "type", m.Type, "reason", m.Reason.String(), "field", m.Field, "detail", m.Detail)
	})
	switch {
	case m.Reason == musterv1.Nack_NOT_REGISTERED:
		a.registerLocked(l)
	case m.Reason == musterv1.Nack_RETRY && m.Type == targetName:
		a.retryLocked(m.Field)
	case m.Reason == musterv1.Nack_RETRY && m.Type == registerName:
		a.holdOffLocked(busyHoldOff)
		return errRefused
	case m.Reason == musterv1.Nack_REFUSED || m.Type == registerName:
		a.holdOffLocked(refusedHoldOff)
		return errRefused
	}
	return nil
}
