package coordinator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// worklist is the agents that a loop shall look at, at once or later. An agent
// is in it once, however often it is asked for. It may be used concurrently.
type worklist struct {
	woken chan struct{} // cap 1: there is something to take
	start time.Time     // seconds count from it, on the monotonic clock

	mu    sync.Mutex
	all   bool
	now   map[string]struct{}
	later map[int64]map[string]struct{} // by the second
}

func newWorklist() *worklist {
	return &worklist{woken: make(chan struct{}, 1), start: time.Now(), now: map[string]struct{}{}, later: map[int64]map[string]struct{}{}}
}

// wake asks for a look at these agents. It never blocks.
func (l *worklist) wake(agents ...string) {
	if len(agents) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range agents {
		l.now[a] = struct{}{}
	}
	l.ring()
}

// wakeAll asks for a look at every agent.
func (l *worklist) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = true
	l.ring()
}

func (l *worklist) ring() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// wakeAt asks for a look at an agent at t, or up to a second later.
func (l *worklist) wakeAt(t time.Time, agent string) {
	sec := l.second(t) + 1
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.later[sec] == nil {
		l.later[sec] = map[string]struct{}{}
	}
	l.later[sec][agent] = struct{}{}
}

func (l *worklist) second(t time.Time) int64 { return int64(t.Sub(l.start) / time.Second) }

// wakeDue wakes the agents whose time has come.
func (l *worklist) wakeDue(now time.Time) {
	l.mu.Lock()
	var due []string
	for sec, agents := range l.later {
		if sec <= l.second(now) {
			due = slices.AppendSeq(due, maps.Keys(agents))
			delete(l.later, sec)
		}
	}
	l.mu.Unlock()
	l.wake(due...)
}

// take empties the list; all says that it is every agent.
func (l *worklist) take() (agents map[string]struct{}, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	agents, all = l.now, l.all
	l.now, l.all = map[string]struct{}{}, false
	return agents, all
}
