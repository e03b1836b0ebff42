package bus

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/go-zeromq/zmq4"

	"github.com/musterhq/muster/bus/curve"
)

// Candidate is a peer that has proved to hold a key and wants to come in.
type Candidate struct {
	Key      string // in Z85
	Public   PublicKey
	Identity string // what it calls itself; anybody may
	Addr     net.Addr
}

// CurveServer is the security of a Router: everything is encrypted, and who
// comes in is asked for each new connection, once the peer has proved to hold
// its key. authorize gives the peer its Identity. It must not block; it is
// called from many goroutines at once, and may change its mind at any time: a
// peer that it refuses is closed without a word and comes back with its usual
// back-off. Links that are up are not asked about again; close their Peers.
func CurveServer(secret SecretKey, authorize func(Candidate) (identity string, err error)) Security {
	if secret.IsZero() || authorize == nil {
		return curveServer{}
	}
	return curveServer{curve.NewServer(secret), authorize}
}

// CurveClient is the security of a Dealer that holds secret and talks to the
// router that holds the other half of server, and to no other.
func CurveClient(secret SecretKey, server PublicKey) Security {
	if secret.IsZero() || server == (PublicKey{}) {
		return curveClient{}
	}
	return curveClient{curve.NewClient(secret, server), server, secret.Public()}
}

type curveServer struct {
	server    *curve.Server
	authorize func(Candidate) (string, error)
}

func (s curveServer) check(router bool) error {
	switch {
	case !router:
		return errors.New("bus: CurveServer is for a Router, a Dealer needs CurveClient")
	case s.server == nil:
		return errors.New("bus: CurveServer without a secret key, or without a function to authorize")
	}
	return nil
}

func (s curveServer) begin(_ bool, addr net.Addr) session {
	return &curveServerSession{curveSession: curveSession{due: []string{"HELLO", "INITIATE"}}, of: s, addr: addr}
}

type curveClient struct {
	client *curve.Client
	server PublicKey
	own    PublicKey
}

func (c curveClient) check(router bool) error {
	switch {
	case router:
		return errors.New("bus: CurveClient is for a Dealer, a Router needs CurveServer")
	case c.client == nil:
		return errors.New("bus: CurveClient without a secret key, or without the server's key")
	}
	return nil
}

func (c curveClient) begin(bool, net.Addr) session {
	return &curveClientSession{curveSession: curveSession{due: []string{"WELCOME", "READY"}}, of: c}
}

// curveSession is what the two sides have in common. It is the zmq4.Security of
// one connection: zmq4 carries the commands of the handshake, and nothing else.
type curveSession struct {
	due     []string // commands of the peer that are to come
	suspect string   // why the peer may close now
	proof   proof
}

func (*curveSession) name() string                               { return string(zmq4.CurveSecurity) }
func (s *curveSession) peer() proof                              { return s.proof }
func (s *curveSession) suspicion() string                        { return s.suspect }
func (*curveSession) Type() zmq4.SecurityType                    { return zmq4.CurveSecurity }
func (*curveSession) Encrypt(w io.Writer, b []byte) (int, error) { return w.Write(b) }
func (*curveSession) Decrypt(w io.Writer, b []byte) (int, error) { return w.Write(b) }

func (s *curveSession) vet(name string, body []byte) ([]byte, error) {
	if len(s.due) == 0 || name != s.due[0] {
		return nil, refuse("handshake_command", "%.16q in the handshake, want %s", name, strings.Join(s.due, ", "))
	}
	s.due = s.due[1:]
	return body, nil
}

// meet keeps what the peer said and proved.
func (s *curveSession) meet(meta curve.Metadata, wantType zmq4.SocketType, key PublicKey) error {
	m := metadata{socketType: meta["Socket-Type"], identity: meta["Identity"]}
	s.proof = proof{identity: m.identity, key: key.String()}
	return m.check(string(wantType))
}

type curveServerSession struct {
	curveSession
	of   curveServer
	addr net.Addr
}

func (*curveServerSession) asServer() (ours, most byte) { return 1, 0 }
func (s *curveServerSession) security() zmq4.Security   { return s }

func (s *curveServerSession) Handshake(conn *zmq4.Conn, _ bool) error {
	h := s.of.server.Handshake()
	hello, err := receiveCommand(conn)
	if err != nil {
		return err
	}
	welcome, err := h.Hello(hello)
	if err != nil {
		return refuseCurve(err)
	}
	if err := sendCommand(conn, welcome); err != nil {
		return err
	}
	initiate, err := receiveCommand(conn)
	if err != nil {
		return err
	}
	key, meta, err := h.Initiate(initiate)
	if err != nil {
		return refuseCurve(err)
	}
	if err := s.meet(meta, zmq4.Dealer, key); err != nil {
		return err
	}
	c := Candidate{Key: s.proof.key, Public: key, Identity: s.proof.identity, Addr: s.addr}
	if s.proof.identity, err = s.of.authorize(c); err != nil {
		return refuse("unauthorized", "key %s: %v", c.Key, err)
	}
	ready, crypt, err := h.Ready(curve.Metadata(conn.Meta))
	if err != nil {
		return err
	}
	s.proof.crypt = crypt
	conn.Peer.Meta = zmq4.Metadata(meta)
	return sendCommand(conn, ready)
}

type curveClientSession struct {
	curveSession
	of curveClient
}

// Not every server says that it is one: libzmq's does not.
func (*curveClientSession) asServer() (ours, most byte) { return 0, 1 }
func (s *curveClientSession) security() zmq4.Security   { return s }

// A server that does not want us says nothing, so that we come again: what we
// can do is to guess.
func (s *curveClientSession) Handshake(conn *zmq4.Conn, _ bool) error {
	h := s.of.client.Handshake()
	hello, err := h.Hello()
	if err != nil {
		return err
	}
	if err := sendCommand(conn, hello); err != nil {
		return err
	}
	s.suspect = fmt.Sprintf("; perhaps the server has another key than %v", s.of.server)
	welcome, err := receiveCommand(conn)
	if err != nil {
		return err
	}
	if err := h.Welcome(welcome); err != nil {
		return refuseCurve(err)
	}
	initiate, err := h.Initiate(curve.Metadata(conn.Meta))
	if err != nil {
		return err
	}
	if err := sendCommand(conn, initiate); err != nil {
		return err
	}
	s.suspect = fmt.Sprintf("; perhaps our key is not approved there: %v", s.of.own)
	ready, err := receiveCommand(conn)
	if err != nil {
		return err
	}
	meta, crypt, err := h.Ready(ready)
	if err != nil {
		return refuseCurve(err)
	}
	if err := s.meet(meta, zmq4.Router, s.of.server); err != nil {
		return err
	}
	s.proof.crypt = crypt
	conn.Peer.Meta = zmq4.Metadata(meta)
	return nil
}

func sendCommand(conn *zmq4.Conn, command []byte) error {
	return conn.SendCmd(curve.Split(command))
}

func receiveCommand(conn *zmq4.Conn) ([]byte, error) {
	command, err := conn.RecvCmd()
	if err != nil {
		return nil, err
	}
	return curve.Join(command.Name, command.Body), nil
}

// refuseCurve gives a reason to what package curve says of a command.
func refuseCurve(err error) error {
	r := new(curve.Refusal)
	switch {
	case !errors.As(err, &r):
		return err
	case r.Command == "HELLO" && r.Reason == curve.BadBox:
		return refuse("server_key", "the peer has another server key than ours")
	}
	return refuse("curve_"+string(r.Reason), "%v", err)
}
