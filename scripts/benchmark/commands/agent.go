package commands

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// agent answers each command at once. It keeps nothing: one that comes again is
// answered again.
type agent struct {
	fleet  *fleet
	id     string
	dealer *bus.Dealer
	start  *timestamppb.Timestamp

	mu       sync.Mutex
	peer     *bus.Peer // registered on it, or about to; nil: no link
	in       bool      // it is registered
	sequence uint64
	journal  uint32
	interval time.Duration // as the coordinator says
	next     *time.Timer   // beat
}

func agentID(n int) string { return fmt.Sprintf("bench-%05d", n) }

func newAgent(f *fleet, n int, sec bus.Security) *agent {
	a := &agent{fleet: f, id: agentID(n), start: timestamppb.Now(), interval: 10 * time.Second}
	mux := bus.NewMux()
	mux.Up, mux.Down = a.onUp, a.onDown
	bus.Handle(mux, a.onRegistered)
	bus.Handle(mux, a.onHeartbeatAck)
	bus.Handle(mux, a.onCommand)
	bus.Handle(mux, a.onTargetAck)
	bus.Handle(mux, a.onNack)
	addr := strings.TrimPrefix(f.endpoint, "tcp://")
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return dialFrom(ctx, n, addr) }
	a.dealer = bus.NewDealer(bus.Config{Identity: a.id}, mux, []string{f.endpoint}, sec, dial)
	return a
}

func (a *agent) onUp(p *bus.Peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peer = p
	a.registerLocked()
}

func (a *agent) onDown(*bus.Peer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in {
		a.fleet.tally.registered.Add(-1)
	}
	a.peer, a.in = nil, false
	if a.next != nil {
		a.next.Stop()
	}
}

func (a *agent) registerLocked() {
	a.sequence++
	a.sayLocked(&musterv1.Register{
		AgentId: a.id, RunId: a.fleet.runID, AgentType: "simulated",
		Attributes:   &musterv1.Attributes{Version: "bench", Hostname: a.id, Os: "linux", Arch: "amd64", Ip: "127.0.0.1", Pid: uint32(os.Getpid())},
		CommandTypes: []string{"ping"}, StartupTime: a.start,
		Capabilities: uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS),
		Journal:      &musterv1.JournalPosition{Epoch: a.fleet.runID, Seq: a.journal},
		SequenceNum:  a.sequence,
	})
}

// sayLocked sends m. What is not sent for want of a link is of no use on the next.
func (a *agent) sayLocked(m proto.Message) {
	if a.peer == nil {
		return
	}
	if err := a.peer.Send(m); err != nil {
		a.fleet.tally.errors.Add(1)
	}
}

func (a *agent) onRegistered(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Registered) error {
	p.Promote()
	a.dealer.SetReconnectWindow(m.ReconnectWindow.AsDuration())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in {
		return nil // it was asked to tell all again
	}
	a.in = true
	a.fleet.tally.registered.Add(1)
	a.fleet.tally.registrations.Add(1)
	a.interval = m.HeartbeatInterval.AsDuration()
	a.restLocked()
	return nil
}

// rest waits for the next beat: a random part of an interval, so that the fleet
// does not beat in step.
func (a *agent) rest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in {
		a.restLocked()
	}
}

func (a *agent) restLocked() {
	a.waitLocked(rand.N(a.pauseLocked()))
}

func (a *agent) pauseLocked() time.Duration {
	if d := a.fleet.interval.Load(); d > 0 {
		return time.Duration(d)
	}
	return a.interval
}

func (a *agent) waitLocked(d time.Duration) {
	if a.next == nil {
		a.next = time.AfterFunc(d, a.onBeat)
		return
	}
	a.next.Reset(d)
}

func (a *agent) onBeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.in {
		return
	}
	a.sequence++
	a.sayLocked(&musterv1.Heartbeat{SequenceNum: a.sequence})
	d := a.pauseLocked()
	a.waitLocked(d - d/10 + rand.N(d/5+1))
}

func (a *agent) onHeartbeatAck(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.HeartbeatAck) error {
	a.fleet.tally.beats.Add(1)
	if m.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.registerLocked()
	}
	return nil
}

// onCommand tells what a real agent tells of a program that ends at once.
func (a *agent) onCommand(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Command) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := timestamppb.Now()
	a.journal += 2 // it was started, and it has ended
	a.sayLocked(&musterv1.Target{
		CommandId: m.Id, AgentId: a.id, State: musterv1.Target_SUCCEEDED, StartTime: now, EndTime: now,
		ExitCode: proto.Int32(0), Result: a.fleet.result, JournalSeq: a.journal,
	})
	a.fleet.tally.results.Add(1)
	return nil
}

func (a *agent) onTargetAck(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.TargetAck) error {
	a.fleet.tally.acks.Add(int64(len(m.CommandIds)))
	return nil
}

func (a *agent) onNack(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Nack) error {
	if a.fleet.tally.errors.Add(1) == 1 {
		fmt.Fprintf(os.Stderr, "agent %s: %s not taken: %s %s\n", a.id, m.Type, m.Reason, m.Detail)
	}
	return nil
}
