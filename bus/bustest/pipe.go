package bustest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Buffered is how many bytes a direction of a Pipe holds before Write waits.
const Buffered = 64 << 10

// Pipe returns two connected ends. Unlike those of net.Pipe they have buffers,
// for both ends of a ZMTP handshake write first; and like those of a socket, an
// end whose read deadline has passed reads nothing, even if there is something.
func Pipe() (net.Conn, net.Conn) {
	a, b := newHalf(), newHalf()
	return &conn{in: a, out: b}, &conn{in: b, out: a}
}

// half is one direction.
type half struct {
	mu       sync.Mutex
	changed  *sync.Cond
	buf      []byte
	finished bool // the writer says that nothing follows
	broken   bool // one of the ends is closed
	read     deadline
	write    deadline
}

func newHalf() *half {
	h := &half{}
	h.changed = sync.NewCond(&h.mu)
	return h
}

// deadline wakes who waits on a half when it passes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (h *half) set(d *deadline, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	// A timer that is due at once runs in the caller's thread when it is in a
	// bubble, and many of them at a time crash the race detector (Go 1.26).
	if left := time.Until(t); !t.IsZero() && left > 0 {
		d.timer = time.AfterFunc(left, h.wake)
	}
	h.changed.Broadcast()
}

func (h *half) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed.Broadcast()
}

// end marks the half; what is in the buffer can still be read when it is
// finished, or broken from the writer's side.
func (h *half) end(mark *bool, drop bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*mark = true
	if drop {
		h.buf = nil
	}
	h.changed.Broadcast()
}

// conn is one end.
type conn struct {
	in, out *half

	mu     sync.Mutex
	closed bool
}

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *conn) Read(b []byte) (int, error) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case c.isClosed():
			return 0, net.ErrClosed
		case h.read.passed():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(h.buf) > 0:
			n := copy(b, h.buf)
			h.buf = append(h.buf[:0], h.buf[n:]...)
			h.changed.Broadcast()
			return n, nil
		case h.finished || h.broken:
			return 0, io.EOF
		}
		h.changed.Wait()
	}
}

func (c *conn) Write(b []byte) (n int, err error) {
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case c.isClosed():
			return n, net.ErrClosed
		case h.write.passed():
			return n, os.ErrDeadlineExceeded
		case h.finished || h.broken:
			return n, io.ErrClosedPipe
		}
		room := min(Buffered-len(h.buf), len(b)-n)
		h.buf = append(h.buf, b[n:n+room]...)
		n += room
		h.changed.Broadcast()
		if n == len(b) {
			return n, nil
		}
		h.changed.Wait()
	}
}

// CloseWrite says that nothing follows; the other end reads the rest and then EOF.
func (c *conn) CloseWrite() error {
	c.out.end(&c.out.finished, false)
	return nil
}

// Close closes this end. The other end reads the rest and then EOF, and cannot
// write any more.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	c.mu.Unlock()
	c.SetDeadline(time.Time{}) // stops the timers
	c.in.end(&c.in.broken, true)
	c.out.end(&c.out.broken, false)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.set(&c.in.read, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.set(&c.out.write, t)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr{} }
func (c *conn) RemoteAddr() net.Addr { return addr{} }
