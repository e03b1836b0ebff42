package coordinator

import (
	"sync"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// freshTargets keeps final Targets from when they are given to the store until
// the watch brings them back, which saves decoding each of them again. The zero
// value is ready to use.
type freshTargets struct {
	mu    sync.Mutex
	byKey map[string]*musterv1.Target   // not in a pack yet, by resKey
	packs map[string][]*musterv1.Target // by packKey
}

// put keeps the first report for a key: that is the one which is stored.
func (f *freshTargets) put(key []byte, t *musterv1.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey == nil {
		f.byKey = map[string]*musterv1.Target{}
	}
	if f.byKey[string(key)] == nil {
		f.byKey[string(key)] = t
	}
}

// take returns the report that is kept for a key, or nil, and lets go of it.
func (f *freshTargets) take(key []byte) *musterv1.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.byKey[string(key)]
	if t != nil {
		delete(f.byKey, string(key))
	}
	return t
}

// keep keeps what is in a pack.
func (f *freshTargets) keep(key []byte, ts []*musterv1.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packs == nil {
		f.packs = map[string][]*musterv1.Target{}
	}
	f.packs[string(key)] = ts
}

// release returns what is kept of a pack, or nil, and lets go of it.
func (f *freshTargets) release(key []byte) []*musterv1.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	ts := f.packs[string(key)]
	delete(f.packs, string(key))
	return ts
}

// clear lets go of everything: the watch was cut, so some will not come back.
func (f *freshTargets) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byKey, f.packs = nil, nil
}
