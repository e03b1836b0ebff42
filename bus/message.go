package bus

import "sync"

// message is one message, received or under way.
type message struct {
	buf    []byte // the first three frames, one behind the other
	ends   [3]int // where each of them ends
	frames int    // frames there were, kept or not
	size   uint64 // bytes of all of them
	free   func() // gives back its part of the budget; nil: it took none
}

// Buffers of messages are shared by all peers, so that an idle one has none.
var messages = sync.Pool{New: func() any { return &message{buf: make([]byte, 0, 512)} }}

const keepMessage = 64 << 10 // a larger buffer is not worth keeping

func (m *message) release() {
	if m.free != nil {
		defer m.free()
	}
	if cap(m.buf) <= keepMessage {
		*m = message{buf: m.buf[:0]}
		messages.Put(m)
	}
}

// announce checks the next frame before anything is spent on it.
func (m *message) announce(size, limit uint64, maxFrames int) error {
	m.frames++
	switch {
	case m.frames > maxFrames:
		return refuse("frame_count", "a message of more than %d frames", maxFrames)
	case size > limit:
		return refuse("frame_size", "a frame of %d bytes, limit %d", size, limit)
	case m.size+size > limit:
		return refuse("message_size", "a message of more than %d bytes", limit)
	}
	m.size += size
	return nil
}

// read reads the frame that was announced. A message with more than three
// frames will be refused: there is no need to keep them.
func (m *message) read(in *inbox, size int) (err error) {
	if m.frames > len(m.ends) {
		return in.skip(size)
	}
	from := len(m.buf)
	m.buf, err = in.appendTo(m.buf, size)
	m.keep(from)
	return err
}

// keep ends the frame that was announced, which is what buf has from there on. A
// frame that nobody will look at is dropped, see read.
func (m *message) keep(from int) {
	if m.frames > len(m.ends) {
		m.buf = m.buf[:from]
		return
	}
	m.ends[m.frames-1] = len(m.buf)
}

// frame returns the i-th frame, or nil.
func (m *message) frame(i int) []byte {
	switch {
	case i >= m.frames:
		return nil
	case i == 0:
		return m.buf[:m.ends[0]]
	}
	return m.buf[m.ends[i-1]:m.ends[i]]
}
