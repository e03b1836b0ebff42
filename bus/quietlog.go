package bus

import (
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// quietLog writes what strangers can provoke: ten lines at once and one a
// second, with the number of those left out.
type quietLog struct {
	log     *slog.Logger
	limiter *rate.Limiter
	missed  atomic.Int64
}

func newQuietLog(log *slog.Logger) *quietLog {
	return &quietLog{log: log, limiter: rate.NewLimiter(1, 10)}
}

func (q *quietLog) warn(msg string, args ...any) {
	if !q.limiter.Allow() {
		q.missed.Add(1)
		return
	}
	if n := q.missed.Swap(0); n > 0 {
		args = append(args, "left_out", n)
	}
	q.log.Warn(msg, args...)
}
