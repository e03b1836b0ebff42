package agentd

import (
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fakeLink takes so many messages until it is drained.
type fakeLink struct {
	mu       sync.Mutex
	room     int
	tries    int
	sent     []proto.Message
	asked    []string // ids of envelopes
	promoted bool
	closed   error
	drained  chan struct{}
	done     chan struct{}
}

func newFakeLink(room int) *fakeLink {
	return &fakeLink{room: room, drained: make(chan struct{}, 1), done: make(chan struct{})}
}

func (l *fakeLink) Send(m proto.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	if l.closed != nil {
		return bus.ErrNoPeer
	}
	if len(l.sent) >= l.room {
		return bus.ErrQueueFull
	}
	l.sent = append(l.sent, proto.Clone(m))
	return nil
}

func (l *fakeLink) Ask(id string, m proto.Message) error {
	err := l.Send(m)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked = append(l.asked, id)
	}
	return err
}

func (l *fakeLink) Reply(_ *musterv1.Envelope, m proto.Message) error { return l.Send(m) }

// take returns what was sent, as the other side would read it.
func (l *fakeLink) take() []proto.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent := l.sent
	l.sent = nil
	select {
	case l.drained <- struct{}{}:
	default:
	}
	return sent
}

func (l *fakeLink) Close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		l.closed = cause
		close(l.done)
	}
}

func (l *fakeLink) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (l *fakeLink) Promote() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.promoted = true
}

func (l *fakeLink) Drained() <-chan struct{} { return l.drained }
func (l *fakeLink) Done() <-chan struct{}    { return l.done }
func (l *fakeLink) Addr() net.Addr           { return &net.UnixAddr{Name: "fake", Net: "unix"} }

type fakeDealer struct {
	mu      sync.Mutex
	window  time.Duration
	holdOff time.Duration
}

func (d *fakeDealer) SetReconnectWindow(w time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.window = w
}

func (d *fakeDealer) HoldOff(w time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holdOff = w
}
