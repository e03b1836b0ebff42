package coordinator

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// allowance limits how often something may happen. It is made when it is asked
// for the first time: of most links and agents nothing ever happens twice. It
// may be used concurrently.
type allowance struct {
	limiter atomic.Pointer[rate.Limiter]
}

// take reports whether it may happen now, and counts it.
func (a *allowance) take(perSecond rate.Limit, burst int) bool {
	l := a.limiter.Load()
	if l == nil {
		a.limiter.CompareAndSwap(nil, rate.NewLimiter(perSecond, burst))
		l = a.limiter.Load()
	}
	return l.Allow()
}
