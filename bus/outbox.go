package bus

import (
	"sync"
	"sync/atomic"
)

// corkedBytes are queued at most before the reader is not waited for.
const corkedBytes = 8 << 10

// outbox is the sending half of a connection: a bounded queue, and somebody who
// writes it while there is something in it. That is the reader, for the answers
// of its callbacks, or else a goroutine of its own.
type outbox struct {
	p       *Peer
	drained chan struct{} // capacity 1
	sealing int           // bytes that CURVE adds to a message
	writers sync.WaitGroup

	// corked says that the reader is at work on what arrived and will call
	// uncork before it waits for more: what its callbacks send needs no writer.
	corked atomic.Bool

	mu       sync.Mutex
	queue    *batch // nil: empty
	messages int    // queued or being written
	bytes    int    // of those
	pong     pong
	writing  bool // somebody writes
	closing  bool // nothing more is queued
	full     bool // somebody got ErrQueueFull
}

// batch is encoded messages that are written together.
type batch struct {
	messages [][]byte
	copies   []byte // of messages that were lent
}

// Batches are shared by all peers, so that an idle one has none.
var batches = sync.Pool{New: func() any { return new(batch) }}

// whole is all of the batch in one piece, or nil: then it has to be put together.
func (b *batch) whole() []byte {
	if len(b.messages) == 1 {
		return b.messages[0]
	}
	size := 0
	for _, message := range b.messages {
		size += len(message)
	}
	if size == len(b.copies) {
		return b.copies
	}
	return nil
}

func (b *batch) release() {
	if b != nil && cap(b.messages) <= 1<<10 && cap(b.copies) <= 16<<10 {
		clear(b.messages)
		b.messages, b.copies = b.messages[:0], b.copies[:0]
		batches.Put(b)
	}
}

// pong is the answer to a PING. There is one place for it: when the peer does
// not read, a storm of PINGs costs no more than the latest.
type pong struct {
	due     bool
	size    int
	context [maxPingContext]byte
}

// push queues an encoded message, or a copy of one that is only lent, for the
// reader or a writer to write.
func (o *outbox) push(message []byte, lent bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.queueLocked(message, lent); err != nil {
		return err
	}
	if !o.leftToReaderLocked() {
		o.startLocked()
	}
	return nil
}

// pushNow queues an encoded message, and writes as much as the kernel takes at
// once if nobody else is to write: one message to each of many peers needs no
// writer for each.
func (o *outbox) pushNow(message []byte) error {
	b, answer, err := o.pushAndTake(message)
	if b != nil {
		o.writeNow(b, answer)
		o.writers.Done()
	}
	return err
}

// pushAndTake queues a message, and gives the queue to the caller if it is the
// one to write. Then close waits for it as for a writer.
func (o *outbox) pushAndTake(message []byte) (*batch, pong, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.queueLocked(message, false); err != nil {
		return nil, pong{}, err
	}
	switch {
	case o.leftToReaderLocked():
		return nil, pong{}, nil
	case o.writing || o.bytes+o.messages*o.sealing > corkedBytes:
		o.startLocked()
		return nil, pong{}, nil
	}
	o.writing = true
	o.writers.Add(1)
	b, answer := o.takeLocked()
	return b, answer, nil
}

// leftToReaderLocked reports whether the reader will write what is queued, soon.
func (o *outbox) leftToReaderLocked() bool {
	return o.corked.Load() && o.bytes+o.messages*o.sealing <= corkedBytes
}

func (o *outbox) queueLocked(message []byte, lent bool) error {
	cfg := &o.p.bus.cfg
	if o.closing {
		return ErrNoPeer
	}
	if o.messages >= cfg.QueueMessages || o.messages > 0 && o.bytes+len(message) > cfg.QueueBytes {
		o.full = true
		return ErrQueueFull
	}
	if o.queue == nil {
		o.queue = batches.Get().(*batch)
	}
	if lent {
		start := len(o.queue.copies)
		o.queue.copies = append(o.queue.copies, message...)
		message = o.queue.copies[start:]
	}
	o.queue.messages = append(o.queue.messages, message)
	o.messages++
	o.bytes += len(message)
	return nil
}

// answerPing queues a PONG.
func (o *outbox) answerPing(context []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return
	}
	o.pong.due, o.pong.size = true, copy(o.pong.context[:], context)
	if !o.corked.Load() {
		o.startLocked()
	}
}

// startLocked starts a writer, unless somebody writes.
func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		o.writers.Go(func() { o.write(nil, 0, 0) })
	}
}

// claim ends the cork. It gives the queue to the reader, which is to write it,
// unless there is nothing in it or somebody writes already.
func (o *outbox) claim() (b *batch, answer pong, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.corked.Store(false)
	if o.writing || o.emptyLocked() {
		return nil, pong{}, false
	}
	o.writing = true
	b, answer = o.takeLocked()
	return b, answer, true
}

// settle ends what claim began, when so many messages and bytes were written,
// and says whether a writer is to go on.
func (o *outbox) settle(messages, bytes int) (more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wroteLocked(messages, bytes)
	if !o.emptyLocked() || o.closing {
		return true
	}
	o.dryLocked()
	o.writing = false
	return false
}

// todo is what a writer has to do next.
type todo int

const (
	writeMessages todo = iota
	flush              // the queue is dry, but the writer's buffer is not
	rest               // there is nothing to write
	sayEnd             // the same, and nothing will come
)

// take gives the queue to a writer, or says what else to do.
func (o *outbox) take(buffered bool) (b *batch, answer pong, next todo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.emptyLocked():
		b, answer = o.takeLocked()
		return b, answer, writeMessages
	case buffered:
		return nil, pong{}, flush
	}
	o.dryLocked()
	if o.closing {
		return nil, pong{}, sayEnd
	}
	o.writing = false
	return nil, pong{}, rest
}

func (o *outbox) emptyLocked() bool { return o.queue == nil && !o.pong.due }

func (o *outbox) takeLocked() (*batch, pong) {
	b, answer := o.queue, o.pong
	o.queue, o.pong = nil, pong{}
	return b, answer
}

// dryLocked wakes who waits for the queue to run dry.
func (o *outbox) dryLocked() {
	if o.full {
		o.full = false
		select {
		case o.drained <- struct{}{}:
		default:
		}
	}
}

// wrote gives back the room of messages that were written.
func (o *outbox) wrote(messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wroteLocked(messages, bytes)
}

func (o *outbox) wroteLocked(messages, bytes int) {
	o.messages -= messages
	o.bytes -= bytes
}

// held is what is queued or being written.
func (o *outbox) held() (messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.messages, o.bytes
}

// finish takes nothing more; a writer writes what is queued, and then tells the
// peer that nothing follows.
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
