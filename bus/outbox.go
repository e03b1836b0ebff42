package bus

import (
	"errors"
	"os"
	"sync"
	"time"
)

const (
	outboxBuffer = 16 << 10 // small messages are coalesced up to this
	writeStep    = 64 << 10 // larger ones are written in steps of this
)

// outbox is the sending half of a connection: a bounded queue, and a writer
// that lives only while there is something to write. An idle peer has neither
// a writer nor a buffer.
type outbox struct {
	p       *Peer
	drained chan struct{}
	writers sync.WaitGroup

	mu       sync.Mutex
	queue    []Frames
	messages int    // queued, or being written
	bytes    int    // of those
	ping     []byte // context of the PING to be answered; nil: none
	writing  bool   // there is a writer
	closing  bool   // nothing more is queued; the writer finishes
	full     bool   // somebody got ErrQueueFull
}

func (o *outbox) init(p *Peer) { o.p, o.drained = p, make(chan struct{}, 1) }

// push queues f.
func (o *outbox) push(f Frames) error {
	cfg := &o.p.bus.cfg
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return ErrNoPeer
	}
	if o.messages >= cfg.QueueMessages || o.messages > 0 && o.bytes+len(f.wire) > cfg.QueueBytes {
		o.full = true
		return ErrQueueFull
	}
	o.queue = append(o.queue, f)
	o.messages++
	o.bytes += len(f.wire)
	o.p.bus.metrics.queued.Add(1)
	o.p.bus.metrics.queuedBytes.Add(int64(len(f.wire)))
	o.startLocked()
	return nil
}

// pong answers a PING. When answers are waiting already, the latest is sent:
// a storm of PINGs costs one of them.
func (o *outbox) pong(context []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return
	}
	o.ping = append(o.ping[:0:0], context...)
	if o.ping == nil {
		o.ping = []byte{}
	}
	o.startLocked()
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		o.writers.Go(o.write)
	}
}

// finish lets the writer write what is queued, and then tell the peer that
// nothing follows.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		o.startLocked()
	}
}

// close drops what is queued and waits for the writer. The connection is
// closed already.
func (o *outbox) close() {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	o.writers.Wait()
	o.wrote(o.messages, o.bytes)
}

// wrote gives the room of written messages back.
func (o *outbox) wrote(messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages -= messages
	o.bytes -= bytes
	o.p.bus.metrics.queued.Add(-int64(messages))
	o.p.bus.metrics.queuedBytes.Add(-int64(bytes))
}

var writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, outboxBuffer); return &b }}

// write is the writer: it writes until the queue runs dry.
func (o *outbox) write() {
	buf := writeBuffers.Get().(*[]byte)
	w := writer{o: o, buf: (*buf)[:0]}
	defer writeBuffers.Put(buf)
	var batch []Frames
	for {
		var ping []byte
		var state writerState
		batch, ping, state = o.take(batch, len(w.buf) > 0)
		switch state {
		case writerRest:
			return
		case writerFinish:
			o.p.halfClose()
			return
		case writerFlush:
			w.flush()
		case writerWrite:
			w.writeBatch(batch, ping)
			clear(batch)
		}
		if w.err != nil {
			o.p.cut(w.err)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.closing, o.writing = true, false
			return
		}
	}
}

type writerState int

const (
	writerWrite  writerState = iota // there is something to write
	writerFlush                     // there is not, but something is in the buffer
	writerRest                      // there is nothing: the writer ends
	writerFinish                    // the same, and nothing will come
)

// take says what the writer does next. spare is an old batch, to be the queue.
func (o *outbox) take(spare []Frames, buffered bool) (batch []Frames, ping []byte, s writerState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 || o.ping != nil {
		batch, ping = o.queue, o.ping
		o.queue, o.ping = spare[:0], nil
		return batch, ping, writerWrite
	}
	if buffered {
		return spare, nil, writerFlush
	}
	o.writing = false
	if cap(o.queue) > 16 {
		o.queue = nil
	}
	if o.full {
		o.full = false
		select {
		case o.drained <- struct{}{}:
		default:
		}
	}
	if o.closing {
		o.writing = true // for good
		return nil, nil, writerFinish
	}
	return nil, nil, writerRest
}

// writer puts small messages together and writes them in one go.
type writer struct {
	o     *outbox
	buf   []byte
	held  int // messages in buf
	bytes int // of them
	until time.Time
	err   error
}

func (w *writer) writeBatch(batch []Frames, ping []byte) {
	if ping != nil {
		w.append(appendCommand(nil, "PONG", ping), 0)
	}
	for _, f := range batch {
		w.append(f.wire, 1)
	}
}

// append adds b, which has so many messages.
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
	w.flush()
	w.write(b)
	w.release()
}

func (w *writer) flush() {
	w.write(w.buf)
	w.buf = w.buf[:0]
	w.release()
}

func (w *writer) release() {
	if w.held > 0 {
		w.o.wrote(w.held, w.bytes)
		w.held, w.bytes = 0, 0
	}
}

// write writes all of b, as long as the peer takes something of it now and then.
func (w *writer) write(b []byte) {
	nc, stall := w.o.p.nc, w.o.p.bus.cfg.WriteStall
	for len(b) > 0 && w.err == nil {
		if now := time.Now(); w.until.Sub(now) < stall {
			w.until = now.Add(stall + stall/8) // not a system timer for every write
			nc.SetWriteDeadline(w.until)
		}
		n, err := nc.Write(b[:min(len(b), writeStep)])
		b = b[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if n > 0 {
				continue
			}
			err = refuse("write_stall", "the peer took nothing for %v", stall)
		}
		w.err = err
	}
}

// appendCommand appends a ZMTP command frame.
func appendCommand(b []byte, name string, body []byte) []byte {
	b = appendHeader(b, flagCommand, 1+len(name)+len(body))
	return append(append(append(b, byte(len(name))), name...), body...)
}

// halfClose says that nothing follows, if the transport can say it; the peer
// then closes. Otherwise it closes.
func (p *Peer) halfClose() {
	if c, ok := p.nc.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		return
	}
	p.nc.Close()
}
