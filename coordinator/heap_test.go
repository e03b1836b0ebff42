package coordinator

import (
	"runtime"
	runtimemetrics "runtime/metrics"
	"testing"
	"time"
)

func TestGrowthOfAHeap(t *testing.T) {
	const floor = 64 << 20
	for live, want := range map[uint64]uint64{0: 300, 1 << 20: 300, 16 << 20: 300, 24 << 20: 166, 32 << 20: 100, 64 << 20: 100, 1 << 30: 100} {
		if got := growth(floor, live); got != want {
			t.Errorf("%d bytes in use: %d %%, want %d", live, got, want)
		}
	}
	if got := growth(0, 1<<20); got != 100 {
		t.Errorf("without a floor: %d %%", got)
	}
}

// The heap may grow as far as what is in use allows, from collection to collection.
func TestHeapFloorFollowsTheHeap(t *testing.T) {
	defer SetHeapFloor(0)
	SetHeapFloor(1 << 30)
	await := func(what string, ok func(percent uint64) bool) {
		t.Helper()
		s := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
		for end := time.Now().Add(10 * time.Second); ; {
			runtime.GC()
			if runtimemetrics.Read(s); ok(s[0].Value.Uint64()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the heap may grow by %d %%", what, s[0].Value.Uint64())
			}
		}
	}
	await("little is in use", func(percent uint64) bool { return percent == 300 })
	much := make([]byte, 600<<20)
	await("more than half of the floor is in use", func(percent uint64) bool { return percent == 100 })
	runtime.KeepAlive(much)
	await("little is in use again", func(percent uint64) bool { return percent == 300 })
	SetHeapFloor(0)
	await("there is no floor", func(percent uint64) bool { return percent == 100 })
}
