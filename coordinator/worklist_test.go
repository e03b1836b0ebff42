package coordinator

import (
	"testing"
	"time"
	"unsafe"
)

// onSetClock is a time as it would be read from a wall clock that was set by
// seconds: the monotonic clock goes on as before.
func onSetClock(t time.Time, seconds int64) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // the seconds are above 30 bits of nanoseconds
	*wall += uint64(seconds) << 30
	return t
}

// What is to be looked at in a while is looked at in a while, however the wall
// clock is set meanwhile.
func TestC050WorklistKeepsItsPace(t *testing.T) {
	for _, set := range []int64{-3600, 0, 3600} {
		l := newWorklist()
		now := time.Now()
		l.wakeAt(now.Add(30*time.Second), "a")
		l.wakeDue(onSetClock(now.Add(20*time.Second), set))
		if got, _ := l.take(); len(got) != 0 {
			t.Errorf("clock set by %d s: woken 10 s too early", set)
		}
		l.wakeDue(onSetClock(now.Add(32*time.Second), set))
		if got, _ := l.take(); len(got) != 1 {
			t.Errorf("clock set by %d s: not woken in time", set)
		}
	}
}
