package simagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// agent is one simulated agent.
type agent struct {
	fleet *Fleet
	n     int
	id    string

	mu         sync.Mutex
	link       *link // nil: none
	linked     time.Time
	registered bool // on this link
	ended      bool // no more links
	sequence   uint64
	interval   time.Duration // between two beats
	patience   time.Duration // with a link on which nothing comes
	window     time.Duration // in which to come back after a good link broke
	notBefore  time.Time     // no link before
	heard      time.Time     // when anything came last
	beaten     time.Time     // when the last beat left
	beat       *time.Timer
	journal    journal
	configs    map[configKey]*heldConfig
}

const (
	defaultInterval = 10 * time.Second
	registerTime    = 30 * time.Second // for the answer to the first Register of a link
	missedBeats     = 3                // intervals without a word, then the link is given up
	firstBackoff    = 100 * time.Millisecond
	longBackoff     = 8 * time.Second
	goodLife        = 30 * time.Second // of a registered link, after which the back-off starts anew
	longestHoldOff  = time.Hour
)

var (
	errSilent   = errors.New("nothing heard for three heartbeat intervals")
	errRefused  = errors.New("registration refused")
	errVanished = errors.New("the agent vanishes, as it was told to")
)

func newAgent(f *Fleet, n int) *agent {
	return &agent{fleet: f, n: n, id: fmt.Sprintf("%s%05d", f.cfg.Prefix, n)}
}

// run connects, and connects again, until the agent vanishes or ctx ends.
func (a *agent) run(ctx context.Context) {
	for failures := 0; !a.isEnded(); failures++ {
		good, err := a.connect(ctx)
		if errors.Is(err, errVanished) || ctx.Err() != nil {
			return
		}
		a.fleet.cfg.Log.Debug("not connected", "agent", a.id, "err", err)
		if good >= goodLife {
			failures = 0
		}
		a.wait(ctx, failures, good > 0)
	}
}

// connect serves one link. It returns for how long it was good, and why it is not
// any more.
func (a *agent) connect(ctx context.Context) (good time.Duration, err error) {
	l, err := a.open(ctx)
	if err != nil {
		return 0, err
	}
	defer l.nc.Close()
	if !a.use(l) {
		return 0, nil
	}
	err = l.cause(a.serve(l))
	good = a.leave()
	if !errors.Is(err, errVanished) {
		a.fleet.tally.failUnless(ctx, kindOf(err))
	}
	return good, err
}

// open dials and shakes hands. Only so many agents do it at a time: a
// coordinator has places for 512.
func (a *agent) open(ctx context.Context) (*link, error) {
	select {
	case a.fleet.handshakes <- struct{}{}:
		defer func() { <-a.fleet.handshakes }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	nc, err := a.dial(ctx)
	if err != nil {
		a.fleet.tally.failUnless(ctx, "dial")
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	l, err := shakeHands(nc, a.id)
	if err != nil {
		nc.Close()
		a.fleet.tally.failUnless(ctx, "handshake")
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return l, nil
}

func (a *agent) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	return a.fleet.cfg.Dial(ctx, a.n)
}

// serve registers and takes what comes, until the link breaks.
func (a *agent) serve(l *link) error {
	l.nc.SetReadDeadline(time.Now().Add(registerTime))
	a.register(l)
	for {
		if l.in.empty() {
			l.flush() // what came together is answered together
			if err := l.in.await(); err != nil {
				return err
			}
		}
		m, err := l.in.message()
		if err != nil {
			return err
		}
		if err := a.take(l, m); err != nil {
			return err
		}
	}
}

// use begins on a new link, unless the agent has ended.
func (a *agent) use(l *link) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	now := time.Now()
	a.link, a.registered, a.linked, a.heard = l, false, now, now
	a.fleet.tally.connected.Add(1)
	return true
}

// leave forgets the link, and returns for how long it was good.
func (a *agent) leave() (good time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fleet.tally.connected.Add(-1)
	if a.registered {
		a.fleet.tally.registered.Add(-1)
		good = max(time.Since(a.linked), 1)
	}
	a.link, a.registered = nil, false
	a.forgetFetchesLocked()
	if a.beat != nil {
		a.beat.Stop()
	}
	return good
}

// stop ends the agent; run returns soon.
func (a *agent) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.stopTimersLocked()
	if a.link != nil {
		a.link.nc.Close()
	}
}

func (a *agent) isEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// wait waits before the next link, as bus.Dealer does: after one that was good for
// a random moment in the window that the coordinator gave, after others for a
// time up to a limit that doubles with each failure.
func (a *agent) wait(ctx context.Context, failures int, wasGood bool) {
	a.mu.Lock()
	delay := rand.N(min(firstBackoff<<min(failures, 10), longBackoff))
	if wasGood && a.window > 0 {
		delay = max(delay, rand.N(a.window))
	}
	delay += max(0, time.Until(a.notBefore))
	a.mu.Unlock()
	t := time.NewTimer(max(1, delay))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// holdOffLocked makes the agent not come back before after has passed.
func (a *agent) holdOffLocked(after time.Duration) {
	a.notBefore = time.Now().Add(min(after, longestHoldOff))
}
