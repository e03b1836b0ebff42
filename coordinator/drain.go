package coordinator

import "sync"

// drain is those who wait for the queue of a link to drain. The link tells one
// of them, so there is one who waits, and wakes all.
type drain struct {
	mu      sync.Mutex
	waiting map[string]func() // by who they are
}

// whenDrained calls fn, once, when the link's queue has drained or the link is
// gone. Of the same caller only the last fn counts. It does not block.
func (s *session) whenDrained(who string, fn func()) {
	s.drain.mu.Lock()
	defer s.drain.mu.Unlock()
	if s.drain.waiting == nil {
		s.drain.waiting = map[string]func(){}
		go s.awaitDrain() // ends with the link
	}
	s.drain.waiting[who] = fn
}

func (s *session) awaitDrain() {
	select {
	case <-s.peer.Drained():
	case <-s.peer.Done():
	}
	s.drain.mu.Lock()
	waiting := s.drain.waiting
	s.drain.waiting = nil
	s.drain.mu.Unlock()
	for _, fn := range waiting {
		fn()
	}
}
