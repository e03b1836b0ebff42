package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// muster is our Router. What it answers was decoded before, and is encoded anew.
type muster struct {
	ln     net.Listener
	sec    bus.Security
	router *bus.Router
	public string

	pushed sync.WaitGroup
	full   chan struct{} // capacity 1: a queue is full
}

func listenMuster() (contestant, error) { return newMuster(bus.Null(), "") }

// listenMusterCurve lets everybody in who holds some key.
func listenMusterCurve() (contestant, error) {
	public, secret, err := bus.NewKeyPair()
	if err != nil {
		return nil, err
	}
	authorize := func(c bus.Candidate) (string, error) { return c.Identity, nil }
	return newMuster(bus.CurveServer(secret, authorize), public.String())
}

func newMuster(sec bus.Security, public string) (contestant, error) {
	m := &muster{sec: sec, public: public, full: make(chan struct{}, 1)}
	mux := bus.NewMux()
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, c *musterv1.OutputChunk) error {
		return p.Reply(env, c)
	})
	bus.Handle(mux, m.onHeartbeat)
	m.router = bus.NewRouter(bus.Config{}, mux)
	var err error
	m.ln, err = bus.Listen("tcp://127.0.0.1:0")
	return m, err
}

func (m *muster) addr() string { return m.ln.Addr().String() }
func (m *muster) key() string  { return m.public }

func (m *muster) serve(ctx context.Context) error {
	defer m.pushed.Wait()
	return m.router.Serve(ctx, m.ln, m.sec)
}

// onHeartbeat pushes commands to a peer that asks for them by a beat.
func (m *muster) onHeartbeat(p *bus.Peer, _ *musterv1.Envelope, _ *musterv1.Heartbeat) error {
	f, err := bus.Seal(nil, &musterv1.Command{Type: "exec", Input: make([]byte, 4<<10)})
	if err != nil {
		return err
	}
	m.pushed.Go(func() { m.push(p, f) })
	return nil
}

// push sends f a thousand times a second, whether or not the peer reads.
func (m *muster) push(p *bus.Peer, f bus.Frames) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.Done():
			return
		}
		if errors.Is(p.SendFrames(f), bus.ErrQueueFull) {
			select {
			case m.full <- struct{}{}:
			default:
			}
		}
	}
}

func (m *muster) awaitFull(ctx context.Context) error {
	select {
	case <-m.full:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
