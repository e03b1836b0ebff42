package coordinator

import (
	"sync"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// freshPacks keeps what is in a pack from when it is given to the store until the
// watch brings it back, which saves decoding it again. The zero value is ready to
// use.
type freshPacks struct {
	mu    sync.Mutex
	byKey map[string][]*musterv1.Target
}

func (f *freshPacks) keep(key []byte, ts []*musterv1.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey == nil {
		f.byKey = map[string][]*musterv1.Target{}
	}
	f.byKey[string(key)] = ts
}

// release returns what is kept of a pack, or nil, and lets go of it.
func (f *freshPacks) release(key []byte) []*musterv1.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	ts := f.byKey[string(key)]
	delete(f.byKey, string(key))
	return ts
}

// clear lets go of everything: the watch was cut, so some will not come back.
func (f *freshPacks) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byKey = nil
}
