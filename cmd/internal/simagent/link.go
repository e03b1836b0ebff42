package simagent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	handshakeTime = 10 * time.Second
	outboxBytes   = 64 << 20 // waiting to be written on one link; then it is given up
	outboxKept    = 64 << 10 // a larger buffer does not go back to the pool
)

var outBuffers = sync.Pool{New: func() any { return new([]byte) }}

// link is one connection to a coordinator, as a ZeroMQ DEALER.
type link struct {
	nc net.Conn
	in *inbox

	mu      sync.Mutex
	out     *[]byte // pushed and not yet written; nil: nothing
	writing bool    // somebody is in flush
	err     error   // why nothing is written any more
}

// shakeHands does the handshake on nc, which it does not close.
func shakeHands(nc net.Conn, identity string) (*link, error) {
	nc.SetDeadline(time.Now().Add(handshakeTime))
	l := &link{nc: nc, in: newInbox(nc)}
	if _, err := nc.Write(append(greeting(), ready(identity)...)); err != nil {
		return nil, err
	}
	if err := l.readGreeting(); err != nil {
		return nil, err
	}
	l.in.rest()
	f, err := l.in.frame()
	if err != nil {
		return nil, err
	}
	switch body := l.in.bytes(f); {
	case f.flags&flagCommand == 0:
		return nil, errors.New("a message in the handshake")
	case bytes.HasPrefix(body, []byte("\x05ERROR")):
		return nil, fmt.Errorf("the coordinator says %.100q", body[6:])
	case !bytes.HasPrefix(body, []byte("\x05READY")):
		return nil, fmt.Errorf("%.20q in the handshake, want READY", body)
	}
	return l, nc.SetDeadline(time.Time{})
}

const greetingSize = 64

// greeting is that of a ZMTP 3.1 peer without security.
func greeting() []byte {
	b := make([]byte, greetingSize, 2*greetingSize)
	b[0], b[8], b[9], b[10], b[11] = 0xff, 1, 0x7f, 3, 1
	copy(b[12:], "NULL")
	return b
}

func (l *link) readGreeting() error {
	if err := l.in.need(greetingSize); err != nil {
		return err
	}
	b := l.in.buf[:greetingSize]
	l.in.r = greetingSize
	switch {
	case b[0] != 0xff || b[9] != 0x7f || b[10] < 3:
		return errors.New("not a ZMTP 3 peer")
	case !bytes.HasPrefix(b[12:], []byte("NULL\x00")):
		return fmt.Errorf("security mechanism %q, want NULL", bytes.TrimRight(b[12:32], "\x00"))
	}
	return nil
}

// ready is the READY command.
func ready(identity string) []byte {
	body := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", "DEALER"}, {"Identity", identity}} {
		body = append(append(body, byte(len(p[0]))), p[0]...)
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(p[1]))), p[1]...)
	}
	return append(appendHeader(nil, flagCommand, len(body)), body...)
}

func appendHeader(b []byte, flags byte, n int) []byte {
	if n <= 255 {
		return append(b, flags, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(n))
}

// push queues m; flush sends it. Messages leave in the order of their push.
func (l *link) push(m proto.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	if l.out == nil {
		l.out = outBuffers.Get().(*[]byte)
	}
	var err error
	if *l.out, err = appendMessage(*l.out, m); err != nil {
		panic(err) // the fleet makes no message that cannot be encoded
	}
	if len(*l.out) > outboxBytes {
		l.failLocked(errBacklog)
	}
}

var errBacklog = errors.New("the coordinator does not read")

// appendMessage appends the three frames of m, with an empty envelope.
func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	var opt proto.MarshalOptions
	name := m.ProtoReflect().Descriptor().FullName()
	b = append(appendHeader(b, flagMore, len(name)), name...)
	b = appendHeader(b, flagMore, 0)
	b = appendHeader(b, 0, opt.Size(m))
	opt.UseCachedSize = true
	return opt.MarshalAppend(b, m)
}

// flush writes what was pushed. If somebody writes already it returns at once:
// they take it along.
func (l *link) flush() {
	for out := l.take(false); out != nil; out = l.take(true) {
		_, err := l.nc.Write(*out)
		if cap(*out) <= outboxKept {
			*out = (*out)[:0]
			outBuffers.Put(out)
		}
		if err != nil {
			l.fail(err)
		}
	}
}

// take gives the queue to who writes it: nil when there is nothing to write.
func (l *link) take(mine bool) (out *[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing && !mine {
		return nil
	}
	out, l.out = l.out, nil
	l.writing = out != nil
	return out
}

// fail breaks the link, and says why if nobody said it before.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(err)
}

func (l *link) failLocked(err error) {
	if l.err == nil {
		l.err = err
	}
	l.out = nil
	l.nc.Close()
}

// cause is why the link broke; err is what its reader saw of it.
func (l *link) cause(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	return err
}
