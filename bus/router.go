package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Router accepts peers.
type Router struct {
	core  *core
	crowd *crowd // of peers that shake hands, on all listeners
}

// NewRouter builds a Router; Serve starts it.
func NewRouter(cfg Config, mux *Mux) *Router {
	c := newCore(cfg, mux)
	return &Router{core: c, crowd: newCrowd(c.cfg.MaxHandshaking, c.cfg.Handshake/5)}
}

// Serve accepts peers on ln, which it closes at the end, until ctx ends: then
// it returns nil. It returns an error when somebody else closes ln. Either way
// everything it started has ended. It may run for several listeners at a time.
func (r *Router) Serve(ctx context.Context, ln net.Listener, sec Security) error {
	defer ln.Close()
	if sec == nil {
		return errors.New("bus: no security given")
	}
	if err := sec.check(true); err != nil {
		return err
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	for {
		nc, err := r.accept(ctx, ln)
		if ctx.Err() != nil {
			if nc != nil {
				nc.Close()
			}
			return nil
		} else if err != nil {
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		}
		deadline := time.Now().Add(r.core.cfg.Handshake)
		g, err := r.crowd.enter(ctx, nc)
		if err != nil {
			nc.Close()
			return nil
		}
		conns.Go(func() {
			p := r.welcome(ctx, nc, sec, g, deadline)
			if p == nil {
				return
			}
			// Not here: the handshake made this goroutine's stack grow, and an
			// idle peer needs little.
			conns.Go(func() { r.serve(ctx, p) })
		})
	}
}

const (
	firstPause = 5 * time.Millisecond
	longPause  = time.Second
)

// accept returns the next connection. At the file limit it pauses instead of
// spinning, and says so now and then.
func (r *Router) accept(ctx context.Context, ln net.Listener) (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		nc, err := ln.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return nc, err
		}
		r.core.metrics.refuse("accept")
		r.core.log.warn("accept", "no connection can be accepted", "addr", ln.Addr(), "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// welcome shakes hands. It returns nil when the peer is refused, or ctx ends.
func (r *Router) welcome(ctx context.Context, nc net.Conn, sec Security, g *guest, deadline time.Time) *Peer {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	tune(nc)
	h, err := r.core.shakeHands(nc, sec, true, deadline)
	evicted := r.crowd.leave(g)
	if !stop() {
		return nil // ctx ended
	}
	if evicted {
		err = refuse("handshake_crowded", "all places for handshakes were taken")
	}
	if err != nil {
		nc.Close()
		r.core.metrics.refuseError(err)
		r.core.log.warn(causeOf(err, nc.RemoteAddr()), "connection refused", "addr", nc.RemoteAddr(), "err", err)
		return nil
	}
	r.core.metrics.handshake.Observe((r.core.cfg.Handshake - time.Until(deadline)).Seconds())
	return newPeer(r.core, nc, h, true)
}

// serve serves a peer until its link ends.
func (r *Router) serve(ctx context.Context, p *Peer) { r.tellCut(p, p.run(ctx)) }

//go:noinline
func (r *Router) tellCut(p *Peer, err error) {
	if errors.As(err, new(*refusal)) {
		r.core.log.warn(causeOf(err, p.Addr()), "link cut", "addr", p.Addr(), "err", err)
	}
}

// causeOf names what one host does wrong, again and again.
func causeOf(err error, addr net.Addr) string {
	host := addr.String()
	if h, _, e := net.SplitHostPort(host); e == nil {
		host = h
	}
	if r := new(refusal); errors.As(err, &r) {
		return r.reason + " " + host
	}
	return host
}
