package bus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	causeEvery = time.Minute // one line of the same cause
	maxCauses  = 256         // remembered at a time
)

// quietLog writes what strangers can provoke: one line a minute of the same
// cause, and ten lines at once and one a second of all together, with the
// number of those left out.
type quietLog struct {
	log     *slog.Logger
	limiter *rate.Limiter

	mu     sync.Mutex
	causes map[string]*cause
	missed int // lines too many of all together
}

type cause struct {
	next   time.Time // a line may be written again
	missed int
}

func newQuietLog(log *slog.Logger) *quietLog {
	return &quietLog{log: log, limiter: rate.NewLimiter(1, 10), causes: map[string]*cause{}}
}

// warn writes a line of a cause; "" is a cause of its own each time.
func (q *quietLog) warn(cause, msg string, args ...any) {
	q.line(slog.LevelWarn, cause, msg, args)
}

func (q *quietLog) error(cause, msg string, args ...any) {
	q.line(slog.LevelError, cause, msg, args)
}

func (q *quietLog) line(level slog.Level, cause, msg string, args []any) {
	missed, ok := q.admit(cause)
	if !ok {
		return
	}
	if missed > 0 {
		args = append(args, "left_out", missed)
	}
	q.log.Log(context.Background(), level, msg, args...)
}

// admit says whether a line may be written, and how many were not before it: of
// its cause, or because there were too many of all together.
func (q *quietLog) admit(name string) (missed int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	c := q.causeLocked(name, now)
	if c != nil && now.Before(c.next) {
		c.missed++
		return 0, false
	}
	if !q.limiter.AllowN(now, 1) {
		q.missed++
		return 0, false
	}
	missed, q.missed = q.missed, 0
	if c != nil {
		missed += c.missed
		c.next, c.missed = now.Add(causeEvery), 0
	}
	return missed, true
}

// causeLocked returns the cause of that name; nil if there is none, or no place
// for it.
func (q *quietLog) causeLocked(name string, now time.Time) *cause {
	if name == "" {
		return nil
	}
	if c := q.causes[name]; c != nil {
		return c
	}
	if len(q.causes) >= maxCauses {
		for old, c := range q.causes {
			if now.After(c.next) {
				q.missed += c.missed
				delete(q.causes, old)
			}
		}
		if len(q.causes) >= maxCauses {
			return nil
		}
	}
	c := &cause{}
	q.causes[name] = c
	return c
}
