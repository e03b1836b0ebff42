package bus

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"time"
)

const (
	writerBuffer = 16 << 10 // small messages are put together up to this
	writeStep    = 64 << 10 // larger ones are written in steps of this
)

// Buffers of writers are shared by all peers, so that an idle one has none.
var writerBuffers = sync.Pool{New: func() any { return new([writerBuffer]byte) }}

// write writes until the queue runs dry. It begins with rest, which is what the
// reader could not write of so many messages and bytes.
func (o *outbox) write(rest []byte, messages, bytes int) {
	buf := writerBuffers.Get().(*[writerBuffer]byte)
	defer writerBuffers.Put(buf)
	w := writer{o: o, buf: append(buf[:0], rest...), held: messages, bytes: bytes}
	for w.next() {
	}
	if w.err != nil {
		o.fail()
		o.p.cut(w.err)
	}
}

// uncork is called by the reader before it waits. It writes what the callbacks
// sent as far as the kernel takes it at once, which is cheaper than to wake a
// writer; a writer gets what is left.
func (o *outbox) uncork() {
	if b, answer, ok := o.claim(); ok {
		o.writeNow(b, answer)
	}
}

// writeNow writes what was taken from the queue, which fits into one buffer, as
// far as the kernel takes it at once.
func (o *outbox) writeNow(b *batch, answer pong) {
	if o.p.crypt == nil && !answer.due {
		if wire := b.whole(); wire != nil {
			o.writeOut(wire, len(b.messages), len(wire))
			b.release()
			return
		}
	}
	buf := writerBuffers.Get().(*[writerBuffer]byte)
	defer writerBuffers.Put(buf)
	w := writer{o: o, buf: buf[:0]}
	w.add(b, answer) // fits, see corkedBytes
	o.writeOut(w.buf, w.held, w.bytes)
}

// writeOut writes so many messages, and their bytes before they were sealed.
func (o *outbox) writeOut(wire []byte, messages, size int) {
	n := o.p.in.direct.write(wire)
	if n == len(wire) {
		if o.settle(messages, size) {
			o.writers.Go(func() { o.write(nil, 0, 0) })
		}
		return
	}
	left := bytes.Clone(wire[n:])
	o.writers.Go(func() { o.write(left, messages, size) })
}

// writer puts small messages together and writes them in one go.
type writer struct {
	o     *outbox
	buf   []byte
	held  int       // messages in buf
	bytes int       // of them
	until time.Time // the deadline set last
	err   error
}

// next does what is to be done next, and says whether there is more to do.
func (w *writer) next() bool {
	b, answer, todo := w.o.take(len(w.buf) > 0)
	switch todo {
	case writeMessages:
		w.add(b, answer)
	case flush:
		w.flush()
	case sayEnd:
		w.o.p.halfClose()
		return false
	case rest:
		return false
	}
	return w.err == nil
}

// add writes b and answer, at the latest with the next flush.
func (w *writer) add(b *batch, answer pong) {
	defer b.release()
	if answer.due {
		var frame [maxHeader + 5 + maxPingContext]byte
		w.append(appendCommand(frame[:0], "PONG", answer.context[:answer.size]), 0)
	}
	if b == nil {
		return
	}
	for _, message := range b.messages {
		w.append(message, 1)
	}
}

// append writes b, which has so many messages, at the latest with the next flush.
func (w *writer) append(b []byte, messages int) {
	if w.o.p.crypt != nil {
		w.seal(b)
		w.held += messages
		w.bytes += len(b) * messages
		if len(w.buf) == 0 {
			w.release() // a large frame was the last
		}
		return
	}
	if len(w.buf)+len(b) > cap(w.buf) {
		w.flush()
	}
	w.held += messages
	w.bytes += len(b) * messages
	if len(b) <= cap(w.buf) {
		w.buf = append(w.buf, b...)
		return
	}
	w.write(b)
	w.release()
}

func (w *writer) flush() {
	w.write(w.buf)
	w.buf = w.buf[:0]
	w.release()
}

// release gives the room of what was written back to the queue.
func (w *writer) release() {
	if w.held > 0 {
		w.o.wrote(w.held, w.bytes)
		w.held, w.bytes = 0, 0
	}
}

// write writes all of b, if the peer takes something of it now and then. It
// looks several times before it says that the peer takes nothing: the first
// looks may each find a little that was taken early.
func (w *writer) write(b []byte) {
	nc, stall := w.o.p.nc, w.o.p.bus.cfg.WriteStall
	var since time.Time // the peer took something last
	for len(b) > 0 && w.err == nil {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		if w.until.Sub(now) < stall/8 {
			w.until = now.Add(stall / 4) // not a new timer for every write
			nc.SetWriteDeadline(w.until)
		}
		step := b[:min(len(b), writeStep)]
		n, err := nc.Write(step)
		stalled := n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && time.Since(since) >= stall
		if stalled {
			// Once more: perhaps not the peer was stopped, but this process.
			nc.SetWriteDeadline(time.Now().Add(deadlineRest))
			n, err = nc.Write(step)
			w.until = time.Time{}
		}
		b = b[n:]
		switch {
		case n > 0:
			since = time.Time{}
		case stalled:
			w.err = refuse("write_stall", "the peer took nothing for %v", stall)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			w.err = err
		}
	}
}

// appendCommand appends a ZMTP command frame.
func appendCommand(b []byte, name string, body []byte) []byte {
	b = appendHeader(b, flagCommand, 1+len(name)+len(body))
	return append(append(append(b, byte(len(name))), name...), body...)
}
