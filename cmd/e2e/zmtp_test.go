package e2e

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rawPeer is a DEALER by hand, to be as bad as a test wants.
type rawPeer struct{ net.Conn }

// dialRaw opens a plain TCP connection to an endpoint. A window of 0 leaves the
// receive buffer as the kernel has it.
func dialRaw(endpoint string, window int) (rawPeer, error) {
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		if window == 0 {
			return nil
		}
		var err error
		cerr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, window)
		})
		return errors.Join(err, cerr)
	}}
	conn, err := d.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	return rawPeer{conn}, err
}

// handshake does ZMTP 3.0 with the NULL mechanism (RFC 23).
func (p rawPeer) handshake() error { return p.handshakeAs("DEALER") }

func (p rawPeer) handshakeAs(socketType string) error {
	greeting := make([]byte, 64)
	greeting[0], greeting[8], greeting[9], greeting[10] = 0xff, 0x01, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(socketType))) + socketType + "\x08Identity\x00\x00\x00\x00"
	if _, err := p.Write(slices.Concat(greeting, []byte{0x04, byte(len(ready))}, []byte(ready))); err != nil {
		return err
	}
	if err := p.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	theirs := make([]byte, 64+2)
	if _, err := io.ReadFull(p, theirs); err != nil {
		return err
	}
	_, err := io.ReadFull(p, make([]byte, theirs[65]))
	return err
}

// send sends a message in its three frames.
func (p rawPeer) send(m proto.Message) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return p.sendFrames([]byte(m.ProtoReflect().Descriptor().FullName()), nil, body)
}

func (p rawPeer) sendFrames(frames ...[]byte) error {
	var b []byte
	for i, frame := range frames {
		flags := byte(0x02) // a long size
		if i < len(frames)-1 {
			flags |= 0x01 // more frames follow
		}
		b = append(b, flags)
		b = binary.BigEndian.AppendUint64(b, uint64(len(frame)))
		b = append(b, frame...)
	}
	_, err := p.Write(b)
	return err
}

// receive reads one message.
func (p rawPeer) receive() (frames [][]byte, err error) {
	if err := p.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	for more := true; more; {
		head := make([]byte, 2)
		if _, err := io.ReadFull(p, head); err != nil {
			return nil, err
		}
		size := uint64(head[1])
		if head[0]&0x02 != 0 {
			rest := make([]byte, 7)
			if _, err := io.ReadFull(p, rest); err != nil {
				return nil, err
			}
			size = binary.BigEndian.Uint64(append(head[1:], rest...))
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(p, frame); err != nil {
			return nil, err
		}
		frames, more = append(frames, frame), head[0]&0x01 != 0
	}
	return frames, nil
}

// nack reads messages until a Nack comes.
func (p rawPeer) nack() (*musterv1.Nack, error) {
	for {
		frames, err := p.receive()
		if err != nil {
			return nil, err
		}
		if len(frames) == 3 && string(frames[0]) == "muster.v1.Nack" {
			n := &musterv1.Nack{}
			return n, proto.Unmarshal(frames[2], n)
		}
	}
}

func (p rawPeer) register(id string) error { return p.send(registerOf(id)) }

// claim sends the head of a frame of that size, and no body.
func (p rawPeer) claim(size uint64) error {
	_, err := p.Write(binary.BigEndian.AppendUint64([]byte{0x02}, size))
	return err
}

// cutWithin says whether the other side closes the connection in time; what it
// still sends is read and thrown away.
func (p rawPeer) cutWithin(d time.Duration) bool {
	if p.SetReadDeadline(time.Now().Add(d)) != nil {
		return true
	}
	_, err := io.Copy(io.Discard, p)
	timeout := net.Error(nil)
	return !errors.As(err, &timeout) || !timeout.Timeout()
}
