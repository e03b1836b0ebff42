package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const lingerTime = time.Second // for what is queued when a link is closed

// Peer is one live connection. Its methods may be called from anywhere, at
// any time, also after the link is gone.
type Peer struct {
	bus      *core
	nc       net.Conn
	in       *inbox
	out      outbox
	identity string
	key      string
	router   bool // we are the router of this link

	limit    atomic.Int64 // bytes of a message that is received
	promoted atomic.Int64 // when, in Unix nanoseconds
	attached atomic.Value // of attachment
	closing  atomic.Bool  // nothing is dispatched any more
	done     chan struct{}

	mu     sync.Mutex
	cause  error // why the link ends, when we ended it
	linger *time.Timer
}

type attachment struct{ v any }

// core is what all peers of one Router or Dealer share.
type core struct {
	cfg     Config
	mux     *Mux
	metrics *metrics
	budget  *budget
	log     *quietLog
}

func newCore(cfg Config, mux *Mux) *core {
	cfg = cfg.withDefaults()
	return &core{cfg: cfg, mux: mux, metrics: newMetrics(cfg.Metrics), budget: newBudget(cfg), log: newQuietLog(cfg.Log)}
}

func newPeer(b *core, nc net.Conn, h hello, router bool) *Peer {
	p := &Peer{bus: b, nc: nc, in: h.in, identity: h.identity, key: h.key, router: router, done: make(chan struct{})}
	p.out.init(p)
	p.limit.Store(int64(b.cfg.MaxMessage))
	if router {
		p.limit.Store(int64(b.cfg.MaxUnregistered))
	}
	return p
}

// Identity is the ZeroMQ identity that the peer gave itself: any 0 to 255
// bytes, which others may have, too.
func (p *Peer) Identity() string { return p.identity }

// Key is the public key that the peer proved to have, in Z85; "" with NULL.
func (p *Peer) Key() string { return p.key }

// Addr is the address at the other end of the link.
func (p *Peer) Addr() net.Addr { return p.nc.RemoteAddr() }

// Done is closed when the link is gone, just before Mux.Down is called.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Drained receives after the queue ran empty, when somebody had got
// ErrQueueFull before. One value may stand for several such moments.
func (p *Peer) Drained() <-chan struct{} { return p.out.drained }

// Attach keeps v, the owner's session, with the peer.
func (p *Peer) Attach(v any) { p.attached.Store(attachment{v}) }

// Attached returns what was attached last, or nil.
func (p *Peer) Attached() any {
	a, _ := p.attached.Load().(attachment)
	return a.v
}

// Promote says that the peer is registered: from now on it may send messages
// up to MaxMessage. On a Dealer it also means that the link counts as good:
// after 30 s of life the back-off starts anew.
func (p *Peer) Promote() {
	p.limit.Store(int64(p.bus.cfg.MaxMessage))
	p.promoted.CompareAndSwap(0, time.Now().UnixNano())
}

// Send queues m for the peer. It never blocks, and fails with ErrNoPeer,
// ErrQueueFull, or when m is larger than the peer would accept. No error means
// queued, not delivered.
func (p *Peer) Send(m proto.Message) error { return p.send(nil, m) }

// Reply is Send with to's id, if it has one, as in_reply_to.
func (p *Peer) Reply(to *musterv1.Envelope, m proto.Message) error {
	if to.GetId() == "" {
		return p.send(nil, m)
	}
	return p.send(&musterv1.Envelope{InReplyTo: to.Id}, m)
}

func (p *Peer) send(env *musterv1.Envelope, m proto.Message) error {
	f, err := Seal(env, m)
	if err != nil {
		return err
	}
	return p.SendFrames(f)
}

// SendFrames is Send for a message that was encoded before, perhaps for many
// peers.
func (p *Peer) SendFrames(f Frames) error {
	limit := p.bus.cfg.MaxMessage
	if !p.router && p.promoted.Load() == 0 {
		limit = min(limit, p.bus.cfg.MaxUnregistered) // the router would cut us
	}
	if f.size > limit {
		return fmt.Errorf("bus: %s of %d bytes, limit %d", f.typ, f.size, limit)
	}
	if err := p.out.push(f); err != nil {
		return err
	}
	p.bus.metrics.sent.count(f.typ)
	return nil
}

// Close ends the link: nothing more is dispatched, what is queued is sent, for
// at most 1 s, and Mux.Down gets cause. It does not wait for any of this.
func (p *Peer) Close(cause error) {
	if !p.closing.CompareAndSwap(false, true) {
		return
	}
	p.mu.Lock()
	p.cause = cause
	p.linger = time.AfterFunc(lingerTime, func() { p.nc.Close() })
	p.mu.Unlock()
	p.out.finish()
}

// cut ends the link at once.
func (p *Peer) cut(cause error) {
	p.mu.Lock()
	if p.cause == nil {
		p.cause = cause
	}
	p.mu.Unlock()
	p.nc.Close()
}

// run serves the link until it ends. Everything it started has ended when it
// returns.
func (p *Peer) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.cut(context.Cause(ctx)) })
	defer stop()
	p.bus.metrics.peers.Inc()
	defer p.bus.metrics.peers.Dec()
	if p.bus.mux.Up != nil {
		p.bus.mux.Up(p)
	}
	err := p.readLoop(ctx)
	p.nc.Close()
	p.out.close()
	p.mu.Lock()
	if p.cause != nil {
		err = p.cause
	}
	if p.linger != nil {
		p.linger.Stop()
	}
	p.mu.Unlock()
	p.countEnd(err)
	close(p.done)
	if p.bus.mux.Down != nil {
		p.bus.mux.Down(p, err)
	}
	return err
}

// countEnd counts a link that ended because its peer broke a rule.
func (p *Peer) countEnd(err error) {
	var r *refusal
	if errors.As(err, &r) {
		p.bus.metrics.refuse(r.reason)
		p.bus.log.warn("link cut", "addr", p.Addr(), "err", err)
	}
}

// readLoop receives and dispatches until the link fails or is closed.
func (p *Peer) readLoop(ctx context.Context) error {
	for {
		err := p.readMessage(ctx)
		if p.closing.Load() {
			return p.drain()
		}
		if err == nil {
			continue
		}
		if p.saysGoodbye(err) {
			p.Close(err)
			return p.drain()
		}
		return err
	}
}

// saysGoodbye says whether the peer shall be sent what is queued before the
// link is closed.
func (p *Peer) saysGoodbye(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		switch r.reason {
		case "frame_size", "message_size", "frame_count":
			p.sendNack(nil, nil, &NackError{Reason: musterv1.Nack_MALFORMED, Detail: r.detail})
			return true
		}
		return false
	}
	return errors.Is(err, ErrHangUp) || errors.As(err, new(*NackError))
}

// drain reads and drops what still comes while the queue is flushed: closing
// with unread bytes would make the kernel throw away what we sent. The timer
// of Close ends it.
func (p *Peer) drain() error {
	p.in.disarm()
	p.in.ttl = 0
	for {
		if _, err := p.nc.Read(p.in.buf); err != nil {
			return err
		}
	}
}

// readMessage receives one message and dispatches it.
func (p *Peer) readMessage(ctx context.Context) error {
	if err := p.await(); err != nil {
		return err
	}
	m := messages.Get().(*message)
	defer m.release()
	release, err := p.receive(ctx, m)
	defer release()
	if err != nil {
		return p.explain(err)
	}
	p.in.disarm()
	if p.closing.Load() {
		return nil
	}
	return p.bus.mux.dispatch(p, m)
}

// await waits for the first byte of a message.
func (p *Peer) await() error {
	if p.in.r < p.in.w {
		return nil
	}
	if p.in.ttl > 0 {
		p.in.arm(time.Now().Add(p.in.ttl))
	}
	if err := p.in.need(1); errors.Is(err, os.ErrDeadlineExceeded) {
		return refuse("silent", "the peer promised to be heard within %v", p.in.ttl)
	} else if err != nil {
		return err
	}
	p.in.disarm()
	return nil
}

// explain gives a reason to an error in the middle of a message.
func (p *Peer) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("message_time", "a message took longer than %v", p.bus.cfg.MessageTime)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("in the middle of a message: %w", err)
	}
	return err
}

// nack counts a message that could not be handled, and tells the peer, unless
// the message is itself a Nack.
func (p *Peer) nack(reason string, typ []byte, env *musterv1.Envelope, r musterv1.Nack_Reason, detail string) error {
	p.bus.metrics.refuse(reason)
	p.sendNack(typ, env, &NackError{Reason: r, Detail: detail})
	return nil
}

const (
	nackType  = "muster.v1.Nack"
	maxDetail = 1 << 10
)

func (p *Peer) sendNack(typ []byte, env *musterv1.Envelope, n *NackError) {
	if string(typ) == nackType {
		return
	}
	err := p.Reply(env, &musterv1.Nack{
		Type: text(typ, 128), Reason: n.Reason, Detail: text([]byte(n.Detail), maxDetail), Field: text([]byte(n.Field), maxDetail),
	})
	if err != nil {
		p.bus.metrics.refuse("nack_dropped")
	}
}

// text makes a protobuf string of what a peer may have sent.
func text(b []byte, limit int) string {
	return strings.ToValidUTF8(string(b[:min(len(b), limit)]), "?")
}
