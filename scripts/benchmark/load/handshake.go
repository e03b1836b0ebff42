package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/musterhq/muster/bus/curve"
)

// Security says how peers greet the server.
type Security struct {
	Raw    bool          // not at all: the bytes of the frames are all there is
	Client *curve.Client // by CURVE; nil means NULL
}

const greetingSize = 64

func (s Security) greeting() []byte {
	mechanism := "NULL"
	if s.Client != nil {
		mechanism = "CURVE"
	}
	b := make([]byte, greetingSize)
	b[0], b[9], b[10], b[11] = 0xFF, 0x7F, 3, 1
	copy(b[12:32], mechanism)
	return b
}

// ShakeHands does the handshake of a DEALER on rw, which blocks, and reads not
// one byte more. The session is nil without CURVE.
func (s Security) ShakeHands(rw io.ReadWriter, identity string) (*curve.Session, error) {
	if s.Raw {
		return nil, nil
	}
	ours := s.greeting()
	if _, err := rw.Write(ours); err != nil {
		return nil, err
	}
	theirs := make([]byte, greetingSize)
	if _, err := io.ReadFull(rw, theirs); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	if !bytes.Equal(theirs[12:32], ours[12:32]) {
		return nil, fmt.Errorf("the server's mechanism is %q", bytes.TrimRight(theirs[12:32], "\x00"))
	}
	if s.Client == nil {
		return nil, readyNull(rw, identity)
	}
	return s.readyCurve(rw, identity)
}

// readyNull exchanges READY.
func readyNull(rw io.ReadWriter, identity string) error {
	ready := []byte("\x05READY")
	ready = appendProperty(ready, "Socket-Type", "DEALER")
	ready = appendProperty(ready, "Identity", identity)
	answer, err := ask(rw, ready)
	if err == nil && !bytes.HasPrefix(answer, []byte("\x05READY")) {
		err = fmt.Errorf("%.60q came instead of READY", answer)
	}
	return err
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// readyCurve exchanges HELLO, WELCOME, INITIATE and READY.
func (s Security) readyCurve(rw io.ReadWriter, identity string) (*curve.Session, error) {
	h := s.Client.Handshake()
	hello, err := h.Hello()
	if err != nil {
		return nil, err
	}
	welcome, err := ask(rw, hello)
	if err != nil {
		return nil, err
	}
	if err := h.Welcome(welcome); err != nil {
		return nil, err
	}
	initiate, err := h.Initiate(curve.Metadata{"Socket-Type": "DEALER", "Identity": identity})
	if err != nil {
		return nil, err
	}
	ready, err := ask(rw, initiate)
	if err != nil {
		return nil, err
	}
	_, session, err := h.Ready(ready)
	return session, err
}

const maxCommand = 4 << 10

// ask sends a command and returns the one that answers it. It reads not one
// byte more, since messages may follow.
func ask(rw io.ReadWriter, command []byte) ([]byte, error) {
	if _, err := rw.Write(AppendFrame(nil, FlagCommand, command)); err != nil {
		return nil, err
	}
	head := make([]byte, 2, 9)
	if _, err := io.ReadFull(rw, head); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		head = head[:9]
		if _, err := io.ReadFull(rw, head[2:]); err != nil {
			return nil, fmt.Errorf("handshake: %w", err)
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if head[0]&FlagCommand == 0 || size > maxCommand {
		return nil, errors.New("handshake: no command came, or a huge one")
	}
	answer := make([]byte, size)
	_, err := io.ReadFull(rw, answer)
	return answer, err
}
