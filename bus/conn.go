package bus

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/musterhq/muster/bus/curve"
)

// No other file imports zmq4, except curve.go.

// Security is how the two sides of a connection prove who they are.
type Security interface {
	// check says whether it can be that of a Router, or of a Dealer.
	check(router bool) error
	// begin starts the mechanism for one connection with the peer at addr.
	begin(router bool, addr net.Addr) session
}

// session is a mechanism at work on one connection.
type session interface {
	mechanism
	security() zmq4.Security
	suspicion() string // "; perhaps …": why the peer may have closed just now, or ""
	peer() proof       // valid when the handshake is done
}

// proof is what a handshake showed of the peer.
type proof struct {
	identity string
	key      string         // in Z85, "" when it has none
	crypt    *curve.Session // nil: frames travel in the clear
}

// Null is no security: for loopback and ipc. Everybody who can reach the
// port is taken for what it says it is.
func Null() Security { return nullSecurity{} }

type nullSecurity struct{}

func (nullSecurity) check(bool) error { return nil }

func (nullSecurity) begin(router bool, _ net.Addr) session {
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

func (s *nullSession) name() string                { return string(zmq4.NullSecurity) }
func (s *nullSession) asServer() (ours, most byte) { return 0, 0 }
func (s *nullSession) security() zmq4.Security     { return null.Security() }
func (s *nullSession) suspicion() string           { return "" }
func (s *nullSession) peer() proof                 { return proof{identity: s.meta.identity} }

func (s *nullSession) vet(name string, body []byte) (clean []byte, err error) {
	if name != zmq4.CmdReady {
		return nil, refuse("handshake_command", "%q in the handshake, want READY", name)
	}
	s.meta, clean, err = parseMetadata(body, s.want)
	return clean, err
}

// hello is the outcome of a handshake.
type hello struct {
	in *inbox
	proof
}

// shakeHands does the handshake on nc, which must be over at the deadline.
// It does not close nc.
func (b *core) shakeHands(nc net.Conn, sec Security, router bool, deadline time.Time) (h hello, err error) {
	s := sec.begin(router, nc.RemoteAddr())
	g := &guard{Conn: nc, in: newInbox(nc), mech: s, deadline: deadline}
	// zmq4 sees only what the guard let through, and Security calls out.
	defer b.recovered(&err)
	g.in.arm(deadline)
	typ := zmq4.Dealer
	if router {
		typ = zmq4.Router
	}
	if _, err := zmq4.Open(g, s.security(), typ, zmq4.SocketIdentity(b.cfg.Identity), router, nil); err != nil {
		if g.err != nil {
			err = g.err
		}
		return hello{}, handshakeError(err, s.suspicion())
	}
	if err := g.flush(); err != nil {
		return hello{}, handshakeError(err, "")
	}
	g.in.disarm()
	nc.SetWriteDeadline(time.Time{})
	return hello{in: g.in, proof: s.peer()}, nil
}

// handshakeError gives a reason to what went wrong below the guard.
func handshakeError(err error, suspicion string) error {
	var r *refusal
	switch {
	case errors.As(err, &r) && r.reason == "handshake_error":
		return refuse(r.reason, "%s%s", r.detail, suspicion)
	case errors.As(err, &r):
		return r
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("handshake_timeout", "handshake took too long%s", suspicion)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, io.ErrClosedPipe), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return refuse("handshake_closed", "the peer closed during the handshake%s", suspicion)
	}
	return refuse("handshake_io", "handshake: %v", err)
}
