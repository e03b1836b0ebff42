package bus_test

import (
	"runtime"
	"testing"
)

// An idle peer is a small buffer and the stack of its reader, with CURVE two keys
// more: nothing of the handshake stays.
func TestIdlePeerIsSmall(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) {
		const peers = 500
		s := echoStation(t, sealed, everybody)
		s.enter().served()
		before := inUse()
		for range peers {
			r := s.enter()
			r.served()
			r.in = nil // the test's own side shall not count
		}
		// About 7.8 KB, of which the test's socket is a part. The race detector makes
		// it more, and stacks that other tests left make it less.
		if each := (inUse() - before) / peers; each > 12<<10 {
			t.Errorf("takes %d bytes", each)
		}
	})
}

// inUse returns the bytes of heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	for range 3 { // stacks shrink by half at a time
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
