package bus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"time"
)

const (
	greetingSize = 64
	minorVersion = 1 // we answer PING, so we are 3.1
)

// guard is the net.Conn on which zmq4 does the handshake. It reads a greeting
// or a command whole, checks it, and only then lets zmq4 see it; and it puts
// right what zmq4 says in our greeting.
type guard struct {
	net.Conn
	in       *inbox
	mech     mechanism
	deadline time.Time // for the whole handshake

	vetted  []byte // checked, and not yet read by zmq4
	out     []byte // written by zmq4, and not yet sent
	greeted bool   // the peer's greeting was read
	sent    int    // bytes that zmq4 wrote
	err     error  // why the peer was refused
}

// mechanism is what the guard has to know of a security mechanism, for one
// connection.
type mechanism interface {
	// name stands in the greeting; ours and the peer's must be the same.
	name() string
	// asServer says which as-server bit belongs in our greeting, and up to which
	// one the peer may send.
	asServer() (ours, most byte)
	// vet checks a command of the peer and returns the body that zmq4 may see.
	vet(name string, body []byte) ([]byte, error)
}

func (g *guard) Read(b []byte) (int, error) {
	if len(g.vetted) == 0 {
		if err := g.flush(); err != nil {
			return 0, err
		}
		var err error
		if g.greeted {
			err = g.readCommand()
		} else {
			err = g.readGreeting()
			g.greeted = true
		}
		if err != nil {
			g.err = err
			return 0, err
		}
	}
	n := copy(b, g.vetted)
	g.vetted = g.vetted[n:]
	return n, nil
}

// Write keeps what zmq4 writes until it reads, for it writes piece by piece.
func (g *guard) Write(b []byte) (int, error) {
	from := len(g.out)
	g.out = append(g.out, b...)
	if g.sent == 0 && len(b) == greetingSize {
		greeting := g.out[from:]
		greeting[11] = minorVersion
		greeting[32], _ = g.mech.asServer()
	}
	g.sent += len(b)
	return len(b), nil
}

func (g *guard) flush() error {
	if len(g.out) == 0 {
		return nil
	}
	g.SetWriteDeadline(g.deadline)
	n, err := g.Conn.Write(g.out)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.SetWriteDeadline(time.Now().Add(deadlineRest)) // as in inbox.read
		_, err = g.Conn.Write(g.out[n:])
	}
	g.out = g.out[:0]
	return err
}

// readGreeting looks at the bytes as they come: what is not ZeroMQ is refused
// at its first byte.
func (g *guard) readGreeting() error {
	in := g.in
	if err := in.need(1); err != nil {
		return err
	}
	if in.buf[in.r] != 0xFF {
		return refuse("greeting", "not a ZMTP greeting")
	}
	if err := in.need(10); err != nil {
		return noEOF(err)
	}
	if in.buf[in.r+9] != 0x7F {
		return refuse("greeting", "not a ZMTP greeting")
	}
	if err := in.need(11); err != nil {
		return noEOF(err)
	}
	if major := in.buf[in.r+10]; major < 3 {
		return refuse("version", "ZMTP revision %d, want 3 or higher", major)
	}
	if err := in.need(greetingSize); err != nil {
		return noEOF(err)
	}
	b := in.take(greetingSize)
	var want [20]byte
	copy(want[:], g.mech.name())
	if !bytes.Equal(b[12:32], want[:]) {
		return refuse("mechanism", "security mechanism %q, want %q", bytes.TrimRight(b[12:32], "\x00"), g.mech.name())
	}
	if _, most := g.mech.asServer(); b[32] > most {
		return refuse("as_server", "as-server is %d, want at most %d", b[32], most)
	}
	g.vetted = bytes.Clone(b)
	return nil
}

// readCommand reads one command of the handshake.
func (g *guard) readCommand() error {
	flags, size, err := g.in.header()
	if err != nil {
		return err
	}
	if flags&^flagLong != flagCommand {
		return refuse("handshake_frame", "a data frame in the handshake")
	}
	if size > maxCommand {
		return refuse("handshake_size", "handshake command of %d bytes, limit %d", size, maxCommand)
	}
	raw, err := g.in.appendTo(nil, int(size))
	if err != nil {
		return err
	}
	name, body, ok := splitCommand(raw)
	if !ok {
		return refuse("handshake_command", "handshake command without a name")
	}
	if string(name) == "ERROR" {
		return refuse("handshake_error", "the peer says %q", errorReason(body))
	}
	if body, err = g.mech.vet(string(name), body); err != nil {
		return err
	}
	g.vetted = appendHeader(nil, flagCommand, 1+len(name)+len(body))
	g.vetted = append(append(append(g.vetted, byte(len(name))), name...), body...)
	return nil
}

// splitCommand splits the body of a command frame.
func splitCommand(b []byte) (name, body []byte, ok bool) {
	if len(b) == 0 || b[0] == 0 || int(b[0]) >= len(b) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

// errorReason is the text in the body of an ERROR command.
func errorReason(body []byte) []byte {
	if len(body) > 0 && int(body[0]) < len(body) {
		return body[1 : 1+int(body[0])]
	}
	return nil
}

// metadata is what a peer says of itself in the handshake.
type metadata struct {
	socketType string
	identity   string
}

// parseMetadata checks metadata by the rules of ZMTP and ours, and returns it
// with a clean copy, which has nothing but the two properties we know.
func parseMetadata(b []byte, wantType string) (metadata, []byte, error) {
	seen := map[string]string{}
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || len(b) < 1+n+4 {
			return metadata{}, nil, refuse("metadata", "metadata is cut short")
		}
		name := strings.ToLower(string(b[1 : 1+n]))
		b = b[1+n:]
		size := binary.BigEndian.Uint32(b)
		if uint64(size) > uint64(len(b)-4) {
			return metadata{}, nil, refuse("metadata", "metadata is cut short")
		}
		if _, twice := seen[name]; twice {
			return metadata{}, nil, refuse("metadata", "property %q is there twice", name)
		}
		seen[name] = string(b[4 : 4+size])
		b = b[4+size:]
	}
	m := metadata{socketType: seen["socket-type"], identity: seen["identity"]}
	if err := m.check(wantType); err != nil {
		return m, nil, err
	}
	clean := appendProperty(nil, "Socket-Type", m.socketType)
	return m, appendProperty(clean, "Identity", m.identity), nil
}

func (m metadata) check(wantType string) error {
	switch {
	case m.socketType != wantType:
		return refuse("socket_type", "socket type %.32q, want %s", m.socketType, wantType)
	case len(m.identity) > 255:
		return refuse("identity", "identity of %d bytes, limit 255", len(m.identity))
	case strings.HasPrefix(m.identity, "\x00"):
		return refuse("identity", "identity begins with a zero byte")
	}
	return nil
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}
