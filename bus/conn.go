package bus

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// No other file imports zmq4, except the CURVE handshake.

// Security is how the two sides of a connection prove who they are.
type Security interface {
	// begin starts the mechanism for one connection.
	begin(router bool) session
}

// session is a mechanism at work on one connection.
type session interface {
	mechanism
	security() zmq4.Security
	peer() metadata // valid when the handshake is done
	key() string    // of the peer in Z85, "" when it has none
}

// Null is no security: for loopback and ipc. Everybody who can reach the
// port is taken for what it says it is.
func Null() Security { return nullSecurity{} }

type nullSecurity struct{}

func (nullSecurity) begin(router bool) session {
	s := &nullSession{want: string(zmq4.Dealer)}
	if !router {
		s.want = string(zmq4.Router)
	}
	return s
}

type nullSession struct {
	want string // socket type of the peer
	meta metadata
}

func (s *nullSession) name() string            { return string(zmq4.NullSecurity) }
func (s *nullSession) asServer() (_, _ byte)   { return 0, 0 }
func (s *nullSession) security() zmq4.Security { return null.Security() }
func (s *nullSession) peer() metadata          { return s.meta }
func (s *nullSession) key() string             { return "" }

func (s *nullSession) vet(name string, body []byte) (clean []byte, err error) {
	if name != zmq4.CmdReady {
		return nil, refuse("handshake_command", "%q in the handshake, want READY", name)
	}
	s.meta, clean, err = parseMetadata(body, s.want)
	return clean, err
}

// hello is the outcome of a handshake.
type hello struct {
	in       *inbox
	identity string
	key      string
}

// shakeHands does the handshake on nc, which must be over at the deadline.
// It does not close nc.
func shakeHands(nc net.Conn, sec Security, router bool, identity string, deadline time.Time) (h hello, err error) {
	s := sec.begin(router)
	g := &guard{Conn: nc, in: newInbox(nc), mech: s, deadline: deadline}
	defer func() {
		// The last line of defence: zmq4 sees only what the guard let through.
		if r := recover(); r != nil {
			err = refuse("panic", "zmq4: %v", r)
		}
	}()
	g.in.arm(deadline)
	typ := zmq4.Dealer
	if router {
		typ = zmq4.Router
	}
	if _, err := zmq4.Open(g, s.security(), typ, zmq4.SocketIdentity(identity), router, nil); err != nil {
		if g.err != nil {
			err = g.err
		}
		return hello{}, handshakeError(err)
	}
	if err := g.flush(); err != nil {
		return hello{}, handshakeError(err)
	}
	g.in.disarm()
	nc.SetWriteDeadline(time.Time{})
	return hello{in: g.in, identity: s.peer().identity, key: s.key()}, nil
}

// handshakeError gives a reason to what went wrong below the guard.
func handshakeError(err error) error {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("handshake_timeout", "handshake took too long")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse("handshake_closed", "the peer closed during the handshake")
	}
	return refuse("handshake_io", "handshake: %v", err)
}
