package coordinator

import (
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"sync/atomic"
)

var (
	heapFloor    atomic.Uint64
	watchTheHeap = sync.OnceFunc(adjustGrowth)
)

// SetHeapFloor lets this process collect garbage less often while its heap is
// small: the heap may grow to four times of what is in use, but not over so many
// bytes, before it is collected, or double, as is usual and as 0 has it always. A
// coordinator of 1,000 agents would else collect after every 40th command, and those
// that meet a collection take twice as long. It is for the program that runs a
// coordinator, and may be called at any time.
func SetHeapFloor(bytes uint64) {
	heapFloor.Store(bytes)
	watchTheHeap()
}

// adjustGrowth is called after each collection: what it leaves behind is found
// unused then.
func adjustGrowth() {
	const live, stacks, globals, now = 0, 1, 2, 3
	s := []runtimemetrics.Sample{live: {Name: "/gc/heap/live:bytes"}, stacks: {Name: "/gc/scan/stack:bytes"}, globals: {Name: "/gc/scan/globals:bytes"}, now: {Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(s)
	used := s[live].Value.Uint64() + s[stacks].Value.Uint64() + s[globals].Value.Uint64() // as the percentage counts it
	if percent := growth(heapFloor.Load(), used); percent != s[now].Value.Uint64() {
		debug.SetGCPercent(int(percent))
	}
	runtime.AddCleanup(&struct{ _ [64]byte }{}, func(struct{}) { adjustGrowth() }, struct{}{})
}

// growth is by how many percent a heap may grow of which so much is in use.
func growth(floor, used uint64) uint64 {
	return min(max(floor*100/max(used, 1), 200), 400) - 100
}
