package bus

import (
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

// write is the writer of o: it writes until the queue runs dry, and it alone
// flushes.
func (o *outbox) write() {
	buf := writerBuffers.Get().(*[writerBuffer]byte)
	defer writerBuffers.Put(buf)
	w := writer{o: o, buf: buf[:0]}
	for w.err == nil {
		if !w.next() {
			return
		}
	}
	o.fail()
	o.p.cut(w.err)
}

// writer puts small messages together and writes them in one go.
type writer struct {
	o     *outbox
	buf   []byte
	held  int       // messages in buf
	bytes int       // of them
	spare []Frames  // an empty batch
	until time.Time // the deadline set last
	err   error
}

// next does what is to be done next, and says whether the writer goes on.
func (w *writer) next() bool {
	batch, pong, todo := w.o.take(w.spare, len(w.buf) > 0)
	switch todo {
	case writeMessages:
		if pong.due {
			w.append(appendCommand(make([]byte, 0, 2+1+4+maxPingContext), "PONG", pong.context[:pong.size]), 0)
		}
		for _, f := range batch {
			w.append(f.wire, 1)
		}
		clear(batch)
		w.spare = batch[:0]
		return true
	case flush:
		w.flush()
		return true
	case sayEnd:
		w.o.p.halfClose()
	}
	return false
}

// append writes b, which has so many messages, at the latest with the next flush.
func (w *writer) append(b []byte, messages int) {
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

// write writes all of b, if the peer takes something of it now and then.
func (w *writer) write(b []byte) {
	nc, stall := w.o.p.nc, w.o.p.bus.cfg.WriteStall
	for len(b) > 0 && w.err == nil {
		if now := time.Now(); w.until.Sub(now) < stall {
			w.until = now.Add(stall + stall/8) // not a new timer for every write
			nc.SetWriteDeadline(w.until)
		}
		step := b[:min(len(b), writeStep)]
		n, err := nc.Write(step)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			// Once more: perhaps not the peer was stopped, but this process.
			nc.SetWriteDeadline(time.Now().Add(deadlineRest))
			n, err = nc.Write(step)
			w.until = time.Time{}
		}
		b = b[n:]
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			w.err = err
		case n == 0:
			w.err = refuse("write_stall", "the peer took nothing for %v", stall)
		}
	}
}

// appendCommand appends a ZMTP command frame.
func appendCommand(b []byte, name string, body []byte) []byte {
	b = appendHeader(b, flagCommand, 1+len(name)+len(body))
	return append(append(append(b, byte(len(name))), name...), body...)
}
