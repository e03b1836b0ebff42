package simagent

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	subBits   = 5 // 32 steps for each doubling: 3 % is the worst error
	subCount  = 1 << subBits
	doublings = 27 // over 32 µs: the last step is at 71 minutes
)

// histogram counts times in steps that grow with the time, so that its size is
// fixed and its relative error is too.
type histogram struct {
	steps [(doublings + 1) * subCount]atomic.Uint64
	max   atomic.Int64 // microseconds
}

func (h *histogram) add(d time.Duration) {
	us := max(0, d.Microseconds())
	h.steps[stepOf(us)].Add(1)
	for {
		top := h.max.Load()
		if us <= top || h.max.CompareAndSwap(top, us) {
			return
		}
	}
}

func stepOf(us int64) int {
	if us < subCount {
		return int(us)
	}
	doubling := bits.Len64(uint64(us)) - subBits // 1: 32 to 63 µs
	step := doubling*subCount + int(us>>(doubling-1)) - subCount
	return min(step, (doublings+1)*subCount-1)
}

// topOf is the longest time that falls into a step, in microseconds.
func topOf(step int) int64 {
	doubling, sub := step/subCount, int64(step%subCount)
	if doubling == 0 {
		return sub
	}
	return (sub+subCount+1)<<(doubling-1) - 1
}

// Times summarizes how long something took.
type Times struct {
	Count                        uint64
	P50, P90, P99, P999, Longest time.Duration
}

func (h *histogram) times() (t Times) {
	var counts [len(h.steps)]uint64
	for i := range h.steps {
		counts[i] = h.steps[i].Load()
		t.Count += counts[i]
	}
	longest := h.max.Load()
	at := func(perMille uint64) time.Duration {
		rank := (t.Count*perMille + 999) / 1000
		for i, n := range counts {
			if n >= rank && n > 0 {
				return time.Duration(min(topOf(i), longest)) * time.Microsecond
			}
			rank -= n
		}
		return time.Duration(longest) * time.Microsecond
	}
	if t.Count > 0 {
		t.P50, t.P90, t.P99, t.P999 = at(500), at(900), at(990), at(999)
		t.Longest = time.Duration(longest) * time.Microsecond
	}
	return t
}
