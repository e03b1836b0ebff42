package bus

import (
	"container/list"
	"context"
	"net"
	"sync"
	"time"
)

// crowd bounds the handshakes in progress. When all places are taken, the
// oldest guest keeps his for patience, and then makes room: silent strangers
// cannot shut the door for long.
type crowd struct {
	places   int
	patience time.Duration
	left     chan struct{} // capacity 1: somebody left

	mu     sync.Mutex
	guests list.List // of *guest, oldest first
}

type guest struct {
	nc      net.Conn
	since   time.Time
	place   *list.Element // nil: he was sent away, or left
	evicted bool
}

func newCrowd(places int, patience time.Duration) *crowd {
	return &crowd{places: places, patience: patience, left: make(chan struct{}, 1)}
}

// enter waits for a place for nc, which came just now.
func (c *crowd) enter(ctx context.Context, nc net.Conn) (*guest, error) {
	g := &guest{nc: nc, since: time.Now()}
	for {
		wait := c.tryEnter(g)
		if g.place != nil {
			return g, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-c.left:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// tryEnter gives g a place, or says when to try again.
func (c *crowd) tryEnter(g *guest) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guests.Len() >= c.places {
		oldest := c.guests.Front().Value.(*guest)
		if wait := c.patience - time.Since(oldest.since); wait > 0 {
			return wait
		}
		c.guests.Remove(oldest.place)
		oldest.place, oldest.evicted = nil, true
		oldest.nc.Close()
	}
	g.place = c.guests.PushBack(g)
	if c.guests.Len() < c.places {
		c.wakeLocked() // others may wait, and one value stood for two who left
	}
	return 0
}

// leave gives the place of g back, and says whether he was sent away before.
func (c *crowd) leave(g *guest) (evicted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.place != nil {
		c.guests.Remove(g.place)
		g.place = nil
	}
	c.wakeLocked()
	return g.evicted
}

func (c *crowd) wakeLocked() {
	select {
	case c.left <- struct{}{}:
	default:
	}
}
