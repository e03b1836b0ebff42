package coordinator

import (
	"sync"

	"golang.org/x/time/rate"
)

// quietLog bounds what peers can make the log grow by: one line per message
// would be a way to fill a disk.
type quietLog struct {
	limit *rate.Limiter

	mu      sync.Mutex
	leftOut int
}

func newQuietLog() *quietLog { return &quietLog{limit: rate.NewLimiter(2, 50)} }

// warn logs what a peer did, unless many such lines came before; the next one
// that is logged tells how many were left out.
func (c *Coordinator) warn(msg string, args ...any) {
	q := c.quiet
	q.mu.Lock()
	if !q.limit.Allow() {
		q.leftOut++
		q.mu.Unlock()
		return
	}
	left := q.leftOut
	q.leftOut = 0
	q.mu.Unlock()
	if left > 0 {
		args = append(args, "left_out", left)
	}
	c.log.Warn(msg, args...)
}
