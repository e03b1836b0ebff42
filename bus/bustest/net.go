// Package bustest has an in-memory network, so that the whole bus runs inside
// a testing/synctest bubble.
package bustest

import (
	"context"
	"net"
	"sync"
)

// Net is a net.Listener and the way to reach it.
type Net struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	conns []net.Conn // both ends
}

// NewNet returns a network that nobody listens on yet: Dial waits for Accept.
func NewNet() *Net { return &Net{accept: make(chan net.Conn), closed: make(chan struct{})} }

// Dial connects to whoever accepts on n. It has the type of bus.Dialer; the
// endpoint does not matter.
func (n *Net) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	near, far := Pipe()
	select {
	case <-n.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case n.accept <- far:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns = append(n.conns, near, far)
		return near, nil
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Cut breaks every connection made so far.
func (n *Net) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}

// Accept returns the far end of the next Dial.
func (n *Net) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the listener. Connections stay.
func (n *Net) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

// Addr is "mem".
func (n *Net) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "mem" }
func (addr) String() string  { return "mem" }
