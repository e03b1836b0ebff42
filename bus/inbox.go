package bus

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	smallInbox   = 896                    // each peer owns this much, which with the rest of inbox is 1,152 bytes
	largeInbox   = 16 << 10               // lent to one that receives a lot
	maxCommand   = 4 << 10                // bytes of a ZMTP command
	deadlineRest = 100 * time.Millisecond // see inbox.read
)

// inbox is the receiving half of a connection: a buffer, the deadlines, and
// the rules for frames.
type inbox struct {
	nc     net.Conn
	direct direct
	out    *outbox // what is queued there goes out before we wait; nil in the handshake
	buf    []byte
	r, w   int // buf[r:w] was received and not yet read
	small  [smallInbox]byte
	large  *[largeInbox]byte // nil: not needed
	last   int               // bytes that the last read into buf got

	rested bool          // the deadline passed once already
	armed  bool          // a deadline is set
	limit  time.Duration // for what is read next, in all; 0: none
	ttl    time.Duration // the peer promised to be heard within this; 0: it did not
}

func newInbox(nc net.Conn) *inbox {
	in := &inbox{nc: nc}
	in.direct.init(nc)
	in.buf = in.small[:]
	return in
}

var largeInboxes = sync.Pool{New: func() any { return new([largeInbox]byte) }}

// fit makes room in buf. It takes a larger one after a read that filled the
// small one, and the small one again after a read that this could have held.
func (in *inbox) fit() {
	have := in.buf[in.r:in.w]
	switch {
	case in.large == nil && in.last == smallInbox:
		in.large = largeInboxes.Get().(*[largeInbox]byte)
		in.buf = in.large[:]
	case in.large != nil && in.last < smallInbox && len(have) < smallInbox/2:
		defer in.giveBack()
		in.buf = in.small[:]
	}
	in.r, in.w = 0, copy(in.buf, have)
}

// giveBack gives the large buffer back.
func (in *inbox) giveBack() {
	if in.large != nil {
		largeInboxes.Put(in.large)
		in.large = nil
	}
}

// read reads from the connection. When the deadline has passed it looks once
// more for what had already arrived: if the process was stopped and continued,
// the deadline is over before anybody could look.
func (in *inbox) read(b []byte) (int, error) {
	if in.limit > 0 {
		in.arm(time.Now().Add(in.limit))
		in.limit = 0
	}
	if in.out != nil {
		in.out.uncork()
	}
	n, err := in.direct.read(in.nc, b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !in.rested {
		in.rested = true
		in.nc.SetReadDeadline(time.Now().Add(deadlineRest))
		n, err = in.direct.read(in.nc, b)
	}
	if n == 0 {
		return 0, err
	}
	if in.out != nil {
		in.out.corked.Store(true)
	}
	return n, nil
}

// arm sets the deadline for everything read until the next arm or disarm.
func (in *inbox) arm(t time.Time) {
	in.rested, in.armed = false, true
	in.nc.SetReadDeadline(t)
}

func (in *inbox) disarm() {
	in.limit = 0
	if in.armed {
		in.armed = false
		in.nc.SetReadDeadline(time.Time{})
	}
}

// begin says that a message is under way, which may take d. It costs nothing
// when the whole message is in the buffer: need and appendTo arm the deadline.
func (in *inbox) begin(d time.Duration) {
	in.disarm()
	in.limit = d
}

// need makes sure that n bytes, at most the size of the buffer, can be read
// from it.
func (in *inbox) need(n int) error {
	for in.w-in.r < n {
		in.fit()
		got, err := in.read(in.buf[in.w:])
		in.w += got
		in.last = got
		if err != nil {
			if err == io.EOF && in.w > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// take returns the next n bytes of the buffer; they are valid until the next read.
func (in *inbox) take(n int) []byte {
	b := in.buf[in.r : in.r+n]
	in.r += n
	return b
}

// appendTo appends the next n bytes to dst. It grows dst as they arrive, not
// as they are announced.
func (in *inbox) appendTo(dst []byte, n int) ([]byte, error) {
	for n > 0 {
		if in.r == in.w && n >= len(in.buf) {
			step := min(n, max(len(dst), freeBytes))
			dst = slices.Grow(dst, step)
			got, err := in.read(dst[len(dst) : len(dst)+step])
			dst = dst[:len(dst)+got]
			n -= got
			if err != nil {
				return dst, noEOF(err)
			}
			continue
		}
		if err := in.need(1); err != nil {
			return dst, noEOF(err)
		}
		got := in.take(min(n, in.w-in.r))
		dst = append(dst, got...)
		n -= len(got)
	}
	return dst, nil
}

// skip reads n bytes and drops them.
func (in *inbox) skip(n int) error {
	for n > 0 {
		if err := in.need(1); err != nil {
			return noEOF(err)
		}
		n -= len(in.take(min(n, in.w-in.r)))
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// header reads the header of a frame.
func (in *inbox) header() (flags byte, size uint64, err error) {
	if err := in.need(2); err != nil {
		return 0, 0, err
	}
	flags = in.buf[in.r]
	if flags&^byte(flagsKnown) != 0 {
		return 0, 0, refuse("flags", "frame with reserved flag bits %#02x", flags)
	}
	if flags&flagLong == 0 {
		return flags, uint64(in.take(2)[1]), nil
	}
	if err := in.need(maxHeader); err != nil {
		return 0, 0, noEOF(err)
	}
	return flags, binary.BigEndian.Uint64(in.take(maxHeader)[1:]), nil
}
