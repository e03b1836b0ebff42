package commands

import (
	"math/rand/v2"
	"sync"
	"time"
)

// heart tells when an agent beats: while it is registered, and at moments that
// are random, so that the fleet does not beat in step.
type heart struct {
	fleet *fleet
	beat  func()        // sends a Heartbeat
	tick  time.Duration // at multiples of which it beats, together with others (at any time)

	mu       sync.Mutex
	beating  bool
	interval time.Duration // as the coordinator says
	next     *time.Timer
}

// start makes it beat until stop. The first beat comes after a random part of an
// interval.
func (h *heart) start(interval time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beating, h.interval = true, interval
	h.restLocked()
}

func (h *heart) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beating = false
	if h.next != nil {
		h.next.Stop()
	}
}

// rest begins anew: the fleet's interval is another one.
func (h *heart) rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.beating {
		h.restLocked()
	}
}

func (h *heart) restLocked() { h.waitLocked(rand.N(h.pauseLocked())) }

func (h *heart) pauseLocked() time.Duration {
	if d := h.fleet.interval.Load(); d > 0 {
		return time.Duration(d)
	}
	return h.interval
}

func (h *heart) waitLocked(d time.Duration) {
	if h.tick > 0 {
		d = time.Until(time.Now().Add(d).Truncate(h.tick).Add(h.tick))
	}
	if h.next == nil {
		h.next = time.AfterFunc(d, h.onTime)
		return
	}
	h.next.Reset(d)
}

func (h *heart) onTime() {
	h.beat()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.beating {
		d := h.pauseLocked()
		h.waitLocked(d - d/10 + rand.N(d/5+1))
	}
}
