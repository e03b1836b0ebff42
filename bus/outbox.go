package bus

import "sync"

// outbox is the sending half of a connection: a bounded queue, and a writer
// that lives only while there is something to write.
type outbox struct {
	p       *Peer
	drained chan struct{} // capacity 1
	writers sync.WaitGroup

	mu       sync.Mutex
	queue    []Frames
	messages int // queued or being written
	bytes    int // of those
	pong     pong
	writing  bool // there is a writer
	closing  bool // nothing more is queued
	full     bool // somebody got ErrQueueFull
}

// pong is the answer to a PING. There is one place for it: when the peer does
// not read, a storm of PINGs costs no more than the latest.
type pong struct {
	due     bool
	size    int
	context [maxPingContext]byte
}

// push queues f.
func (o *outbox) push(f Frames) error {
	cfg, m := &o.p.bus.cfg, o.p.bus.metrics
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
	m.messages.Inc()
	m.bytes.Add(float64(len(f.wire)))
	o.startLocked()
	return nil
}

// answerPing queues a PONG.
func (o *outbox) answerPing(context []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.pong.due, o.pong.size = true, copy(o.pong.context[:], context)
		o.startLocked()
	}
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		o.writers.Go(o.write)
	}
}

// finish takes nothing more, writes what is queued, and then tells the peer
// that nothing follows.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		o.startLocked()
	}
}

// fail takes nothing more and writes nothing more.
func (o *outbox) fail() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing = true
}

// close waits for the writer, when the connection is closed, and drops what it
// did not write.
func (o *outbox) close() {
	o.fail()
	o.writers.Wait()
	o.wrote(o.messages, o.bytes)
}

// wrote gives back the room of messages that were written.
func (o *outbox) wrote(messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages -= messages
	o.bytes -= bytes
	o.p.bus.metrics.messages.Sub(float64(messages))
	o.p.bus.metrics.bytes.Sub(float64(bytes))
}

// todo is what the writer has to do next.
type todo int

const (
	writeMessages todo = iota
	flush              // the queue is dry, but the buffer is not
	rest               // there is nothing to write
	sayEnd             // the same, and nothing will come
)

// take gives the queue to the writer, and spare, an empty batch, to the queue.
func (o *outbox) take(spare []Frames, buffered bool) ([]Frames, pong, todo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 || o.pong.due {
		batch, answer := o.queue, o.pong
		o.queue, o.pong = spare, pong{}
		return batch, answer, writeMessages
	}
	if buffered {
		return nil, pong{}, flush
	}
	if o.full {
		o.full = false
		select {
		case o.drained <- struct{}{}:
		default:
		}
	}
	if o.closing {
		return nil, pong{}, sayEnd
	}
	o.writing = false
	o.queue = nil // an idle peer keeps none
	return nil, pong{}, rest
}
