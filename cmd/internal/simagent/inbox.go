package simagent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

const (
	inboxSize  = 512     // each agent owns this much, so it is small
	inboxKept  = 4 << 10 // a larger buffer goes after the message that needed it
	maxMessage = 8 << 20 // bytes of a message with its headers
)

// Flag bits of a ZMTP frame.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

// inbox is the receiving half of a link.
type inbox struct {
	nc    net.Conn
	buf   []byte
	begin int // of the message under way
	r, w  int // buf[r:w] was received and not yet read
}

func newInbox(nc net.Conn) *inbox { return &inbox{nc: nc, buf: make([]byte, inboxSize)} }

// message is what came; it is good until the next one is read.
type message struct{ name, body []byte }

// frame is where one lies in the buffer, counted from begin, which moves.
type frame struct {
	flags    byte
	from, to int
}

// empty says that reading a message would wait for the network.
func (in *inbox) empty() bool { return in.r == in.w }

// await waits for the first bytes of a message. The goroutine of an idle agent
// waits here and not below message: half as deep, a stack of 4 KiB is enough for it.
func (in *inbox) await() error {
	in.rest()
	n, err := in.nc.Read(in.buf)
	in.w = n
	if n > 0 {
		return nil
	}
	return err
}

// message reads the next message. It passes over ZMTP commands: a coordinator
// sends none.
func (in *inbox) message() (message, error) {
	in.rest()
	var frames [3]frame
	for n := 0; ; {
		f, err := in.frame()
		switch {
		case err != nil:
			return message{}, err
		case f.flags&flagCommand != 0:
			continue
		case n == len(frames):
			return message{}, errors.New("a message of more than 3 frames")
		}
		frames[n] = f
		n++
		if f.flags&flagMore != 0 {
			continue
		}
		if n < len(frames) {
			return message{}, fmt.Errorf("a message of %d frames, want 3", n)
		}
		return message{name: in.bytes(frames[0]), body: in.bytes(frames[2])}, nil
	}
}

// rest begins a message. A buffer that a large one has left is let go.
func (in *inbox) rest() {
	in.begin = in.r
	if in.empty() {
		in.begin, in.r, in.w = 0, 0, 0
		if len(in.buf) > inboxKept {
			in.buf = make([]byte, inboxSize)
		}
	}
}

func (in *inbox) bytes(f frame) []byte { return in.buf[in.begin+f.from : in.begin+f.to] }

// frame reads the next frame into the buffer.
func (in *inbox) frame() (frame, error) {
	if err := in.need(2); err != nil {
		return frame{}, err
	}
	flags, header := in.buf[in.r], 2
	size := uint64(in.buf[in.r+1])
	if flags&flagLong != 0 {
		header = 9
		if err := in.need(header); err != nil {
			return frame{}, err
		}
		size = binary.BigEndian.Uint64(in.buf[in.r+1:])
	}
	if have := in.r - in.begin + header; size > uint64(maxMessage-have) {
		return frame{}, fmt.Errorf("a message of more than %d bytes", maxMessage)
	}
	if err := in.need(header + int(size)); err != nil {
		return frame{}, err
	}
	f := frame{flags: flags, from: in.r + header - in.begin}
	f.to = f.from + int(size)
	in.r += header + int(size)
	return f, nil
}

// need makes sure that the next n bytes are in the buffer.
func (in *inbox) need(n int) error {
	if in.r+n > len(in.buf) {
		in.makeRoom(n)
	}
	for in.w-in.r < n {
		got, err := in.nc.Read(in.buf[in.w:])
		in.w += got
		if err != nil && in.w-in.r < n {
			if err == io.EOF && in.w > in.begin {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// makeRoom moves the message under way to the start of the buffer, of a larger
// one if it must.
func (in *inbox) makeRoom(n int) {
	to := in.buf
	if size := in.r - in.begin + n; size > len(to) {
		to = make([]byte, max(size, 2*len(to)))
	}
	in.w = copy(to, in.buf[in.begin:in.w])
	in.r -= in.begin
	in.buf, in.begin = to, 0
}
