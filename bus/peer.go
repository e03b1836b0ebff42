package bus

import (
	"context"
	"fmt"
	"net"
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
	bus    *core
	nc     net.Conn
	in     *inbox
	out    outbox
	proof       // what it showed in the handshake
	router bool // we are the router of this link

	limit    atomic.Int64 // bytes of a message that is received
	promoted atomic.Int64 // when, in Unix nanoseconds
	attached atomic.Value // of attachment
	closing  atomic.Bool  // nothing is dispatched any more
	done     chan struct{}

	mu     sync.Mutex
	ended  bool // cause is why the link ends: the first reason stays
	cause  error
	linger *time.Timer        // of Close
	giveUp context.CancelFunc // of what the reader waits for, besides the peer
}

type attachment struct{ v any }

// core is what all peers of one Router or Dealer share.
type core struct {
	cfg     Config
	mux     *Mux
	routes  func() map[string]*route // by type
	metrics *metrics
	budget  *budget
	log     *quietLog
}

func newCore(cfg Config, mux *Mux) *core {
	cfg = cfg.withDefaults()
	b := &core{cfg: cfg, mux: mux, metrics: newMetrics(cfg.Metrics), budget: newBudget(cfg), log: newQuietLog(cfg.Log)}
	b.routes = sync.OnceValue(func() map[string]*route { return mux.routes(b.metrics) }) // mux is not yet complete
	return b
}

func newPeer(b *core, nc net.Conn, h hello, router bool) *Peer {
	p := &Peer{bus: b, nc: nc, in: h.in, proof: h.proof, router: router, done: make(chan struct{})}
	p.out.p, p.out.drained = p, make(chan struct{}, 1)
	if p.crypt != nil {
		p.out.sealing = sealedMessage
	}
	p.in.out = &p.out
	p.limit.Store(int64(b.cfg.MaxMessage)) // a dealer chose its router
	if router {
		p.limit.Store(int64(b.cfg.MaxUnregistered))
	}
	return p
}

// Identity is what authorize called the peer, with CURVE at a Router. Else it is
// the ZeroMQ identity that the peer gave itself: any 0 to 255 bytes, which others
// may have, too.
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

// Reply is Send with to's id, if it has one, as in_reply_to, and with its opaque
// bytes as they are (N58).
func (p *Peer) Reply(to *musterv1.Envelope, m proto.Message) error {
	if to.GetId() == "" && len(to.GetOpaque()) == 0 {
		return p.send(nil, m)
	}
	return p.send(&musterv1.Envelope{InReplyTo: to.Id, Opaque: to.Opaque}, m)
}

func (p *Peer) send(env *musterv1.Envelope, m proto.Message) error {
	room := rooms.Get().(*[smallMessage]byte)
	defer rooms.Put(room)
	f, err := sealInto(room[:], env, m)
	if err != nil {
		return err
	}
	if err := p.fits(f); err != nil {
		return err
	}
	return p.sent(f, p.out.push(f.wire, len(f.wire) <= smallMessage))
}

// Small messages are encoded into shared room and copied from there into the
// queue, which spares the collector one object each.
const smallMessage = 512

var rooms = sync.Pool{New: func() any { return new([smallMessage]byte) }}

// SendFrames is Send for a message that was encoded before, perhaps for many
// peers. When nothing is queued for the peer it hands the message to the kernel
// itself, so Send is better for several messages in a row.
func (p *Peer) SendFrames(f Frames) error {
	if err := p.fits(f); err != nil {
		return err
	}
	return p.sent(f, p.out.pushNow(f.wire))
}

// fits checks f against the limit of a message.
func (p *Peer) fits(f Frames) error {
	limit := p.bus.cfg.MaxMessage
	if !p.router && p.promoted.Load() == 0 {
		limit = min(limit, p.bus.cfg.MaxUnregistered) // the router would cut us
	}
	if f.size > limit {
		return fmt.Errorf("bus: %s of %d bytes, limit %d", f.typ, f.size, limit)
	}
	return nil
}

// sent counts f, unless there was an error.
func (p *Peer) sent(f Frames, err error) error {
	if err == nil {
		p.bus.metrics.sent.count(f.typ)
	}
	return err
}

// Close ends the link: nothing more is dispatched, what is queued is sent, for
// at most 1 s, and Mux.Down gets cause. It does not wait for any of this.
func (p *Peer) Close(cause error) {
	if p.closing.Swap(true) {
		return
	}
	p.end(cause)
	p.mu.Lock()
	p.linger = time.AfterFunc(lingerTime, func() { p.nc.Close() })
	p.mu.Unlock()
	p.out.finish()
}

// cut ends the link at once.
func (p *Peer) cut(cause error) {
	p.end(cause)
	p.nc.Close()
}

// end notes why the link ends. The first to say it is right: what follows is
// often only a consequence.
func (p *Peer) end(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended, p.cause = true, cause
	p.bus.metrics.refuseError(cause)
	if p.giveUp != nil {
		p.giveUp()
	}
}

// run serves the link until it ends, and returns why. Everything it started
// has ended when it returns. An idle peer waits in it: its frame and those below
// are kept small, so that the stack fits into 4 KiB.
func (p *Peer) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.cut(context.Cause(ctx)) })
	defer stop()
	p.attend()
	return p.leave(p.bus.shielded(func() error { return p.serve(ctx) }))
}

//go:noinline
func (p *Peer) attend() {
	p.bus.metrics.peers.Inc()
	p.bus.metrics.queued.enter(&p.out)
}

func (p *Peer) serve(ctx context.Context) error {
	if p.bus.mux.Up != nil {
		p.bus.mux.Up(p)
	}
	return p.readLoop(ctx)
}

// leave ends everything, tells who wants to know, and returns why the link ended.
//
//go:noinline
func (p *Peer) leave(err error) error {
	defer p.bus.metrics.peers.Dec()
	defer p.bus.metrics.queued.leave(&p.out)
	p.cut(err)
	p.out.close()
	p.in.giveBack()
	cause := p.stopLinger()
	close(p.done)
	if p.bus.mux.Down != nil {
		p.bus.metrics.refuseError(p.bus.shielded(func() error {
			p.bus.mux.Down(p, cause)
			return nil
		}))
	}
	return cause
}

// stopLinger stops the timer of Close and returns why the link ended.
func (p *Peer) stopLinger() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.linger != nil {
		p.linger.Stop()
	}
	return p.cause
}

// halfClose says that nothing follows, if the transport can say it; the peer
// then closes. Otherwise it closes.
func (p *Peer) halfClose() {
	if c, ok := p.nc.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		return
	}
	p.nc.Close()
}

// untilEnd returns a context that is also cancelled when the link is to end.
func (p *Peer) untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveUp = cancel
	if p.ended {
		cancel()
	}
	return ctx, cancel
}
