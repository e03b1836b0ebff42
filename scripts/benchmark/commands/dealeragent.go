package commands

import (
	"context"
	"net"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// dealerAgent is an agent on a real Dealer, which comes back after a broken link
// as real agents do. It registers and beats; nobody sends it commands.
type dealerAgent struct {
	fleet  *fleet
	id     string
	dealer *bus.Dealer
	heart  heart

	mu       sync.Mutex
	peer     *bus.Peer // registered on it, or about to; nil: no link
	in       bool      // it is registered
	sequence uint64
}

func newDealerAgent(f *fleet, n int, sec bus.Security) *dealerAgent {
	a := &dealerAgent{fleet: f, id: agentID(n)}
	a.heart = heart{fleet: f, beat: a.beat}
	mux := bus.NewMux()
	mux.Up, mux.Down = a.onUp, a.onDown
	bus.Handle(mux, a.onRegistered)
	bus.Handle(mux, a.onHeartbeatAck)
	bus.Handle(mux, a.onNack)
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return dialFrom(ctx, n, f.addr) }
	a.dealer = bus.NewDealer(bus.Config{Identity: a.id}, mux, []string{"tcp://" + f.addr}, sec, dial)
	return a
}

func (a *dealerAgent) run(ctx context.Context) error { return a.dealer.Run(ctx) }

func (a *dealerAgent) rest() { a.heart.rest() }

func (a *dealerAgent) onUp(p *bus.Peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peer = p
	a.registerLocked()
}

func (a *dealerAgent) onDown(*bus.Peer, error) {
	a.heart.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in {
		a.fleet.tally.registered.Add(-1)
	}
	a.peer, a.in = nil, false
}

func (a *dealerAgent) registerLocked() {
	a.sequence++
	a.sayLocked(a.fleet.register(a.id, a.sequence, 0))
}

// sayLocked sends m. What is not sent for want of a link is of no use on the next.
func (a *dealerAgent) sayLocked(m proto.Message) {
	if a.peer == nil {
		return
	}
	if err := a.peer.Send(m); err != nil {
		a.fleet.tally.errors.Add(1)
	}
}

func (a *dealerAgent) onRegistered(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Registered) error {
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
	a.heart.start(m.HeartbeatInterval.AsDuration())
	return nil
}

func (a *dealerAgent) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sequence++
	a.sayLocked(&musterv1.Heartbeat{SequenceNum: a.sequence})
}

func (a *dealerAgent) onHeartbeatAck(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.HeartbeatAck) error {
	a.fleet.tally.beats.Add(1)
	if wantsAll(m) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.registerLocked()
	}
	return nil
}

func (a *dealerAgent) onNack(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Nack) error {
	a.fleet.notTaken(a.id, m)
	return nil
}
