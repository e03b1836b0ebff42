package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Dialer opens a connection to an endpoint.
type Dialer func(ctx context.Context, endpoint string) (net.Conn, error)

// Dealer keeps one connection to one of several routers.
type Dealer struct {
	core      *core
	endpoints []string
	sec       Security
	dial      Dialer

	mu     sync.Mutex
	window time.Duration // in which to come back after a good link broke
	notYet time.Time     // do not dial before
}

// NewDealer builds a Dealer; Run starts it. It tries the endpoints in an order
// of its own. dial may be nil, which means the real network (see Dial).
func NewDealer(cfg Config, mux *Mux, endpoints []string, sec Security, dial Dialer) *Dealer {
	if dial == nil {
		dial = Dial
	}
	endpoints = slices.Clone(endpoints)
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	return &Dealer{core: newCore(cfg, mux), endpoints: endpoints, sec: sec, dial: dial}
}

// SetReconnectWindow sets the time within which, at a random moment, the
// Dealer comes back after a link that was promoted broke, so that a fleet does
// not come back at once.
func (d *Dealer) SetReconnectWindow(w time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.window = w
}

// HoldOff makes the Dealer not dial before after has passed. The link there
// is stays.
func (d *Dealer) HoldOff(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notYet = time.Now().Add(after)
}

const (
	firstBackoff = 100 * time.Millisecond
	longBackoff  = 8 * time.Second  // so that a fleet is back within 10 s of its router (C051)
	goodLife     = 30 * time.Second // of a promoted link, after which the back-off starts anew
	dialTime     = 10 * time.Second
)

// Run connects, serves the link, and connects again, for ever; it returns nil
// when ctx ends, and everything it started has ended then. It returns an error
// only when there is nothing to connect to.
func (d *Dealer) Run(ctx context.Context) error {
	if len(d.endpoints) == 0 {
		return errors.New("bus: no endpoints given")
	}
	if d.sec == nil {
		return errors.New("bus: no security given")
	}
	if err := d.sec.check(false); err != nil {
		return err
	}
	failures := 0
	for n := 0; ctx.Err() == nil; n++ {
		endpoint := d.endpoints[n%len(d.endpoints)]
		promoted, err := d.connect(ctx, endpoint)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, ErrLeaving) {
			d.core.log.warn(endpoint+" "+err.Error(), "not connected", "endpoint", endpoint, "err", err)
		}
		if !promoted.IsZero() && time.Since(promoted) >= goodLife {
			failures = 0
		}
		d.wait(ctx, backoff(failures/len(d.endpoints)), !promoted.IsZero())
		failures++
	}
	return nil
}

// connect serves one link. It returns when the link was promoted, if it was.
func (d *Dealer) connect(ctx context.Context, endpoint string) (promoted time.Time, err error) {
	nc, err := d.dialOne(ctx, endpoint)
	if err != nil {
		return promoted, err
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	tune(nc)
	start := time.Now()
	h, err := d.core.shakeHands(nc, d.sec, false, start.Add(d.core.cfg.Handshake))
	if !stop() {
		return promoted, context.Cause(ctx)
	}
	if err != nil {
		d.core.metrics.refuseError(err)
		return promoted, err
	}
	d.core.metrics.handshake.Observe(time.Since(start).Seconds())
	p := newPeer(d.core, nc, h, false)
	err = p.run(ctx)
	if at := p.promoted.Load(); at != 0 {
		promoted = time.Unix(0, at)
	}
	return promoted, err
}

func (d *Dealer) dialOne(ctx context.Context, endpoint string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	nc, err := d.dial(ctx, endpoint)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", endpoint, err)
	}
	return nc, nil
}

// wait waits before the next dial.
func (d *Dealer) wait(ctx context.Context, delay time.Duration, wasGood bool) {
	d.mu.Lock()
	if wasGood && d.window > 0 {
		delay = max(delay, rand.N(d.window))
	}
	if held := time.Until(d.notYet); held > 0 {
		delay += held
	}
	d.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// backoff is a random time up to a limit that doubles with each failure: full
// jitter, so that a fleet does not come back in step.
func backoff(failures int) time.Duration {
	return rand.N(min(firstBackoff<<min(failures, 10), longBackoff))
}
