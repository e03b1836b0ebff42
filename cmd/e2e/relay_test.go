package e2e

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// relay stands between agents and a coordinator, and can break what goes through.
type relay struct {
	t        *testing.T
	ln       net.Listener
	upstream string

	frozen sync.RWMutex // held for writing while nothing goes through

	mu    sync.Mutex
	links map[*link]bool
	dials []time.Time // when an agent connected
}

// freeze stops everything that goes through, as SIGSTOP would: connections stay,
// and nobody is told. It lasts until thaw.
func (r *relay) freeze() { r.frozen.Lock() }
func (r *relay) thaw()   { r.frozen.Unlock() }

// pass waits until the relay is not frozen.
func (r *relay) pass() {
	r.frozen.RLock()
	defer r.frozen.RUnlock()
}

// dialled is when agents connected so far.
func (r *relay) dialled() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

// link is one connection of an agent.
type link struct {
	relay              *relay
	agent, coordinator *net.TCPConn

	mu     sync.Mutex
	budget int // bytes that still go down before it breaks; negative: no end
}

func startRelay(t *testing.T, endpoint string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, ln: ln, upstream: strings.TrimPrefix(endpoint, "tcp://"), links: map[*link]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() { r.accept(&wg) })
	t.Cleanup(func() {
		ln.Close()
		r.reset()
		wg.Wait()
	})
	return r
}

func (r *relay) endpoint() string { return "tcp://" + r.ln.Addr().String() }

func (r *relay) accept(wg *sync.WaitGroup) {
	for {
		conn, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.pass()
		r.mu.Lock()
		r.dials = append(r.dials, time.Now())
		r.mu.Unlock()
		upstream, err := net.Dial("tcp", r.upstream)
		if err != nil {
			conn.Close()
			continue
		}
		l := &link{relay: r, agent: conn.(*net.TCPConn), coordinator: upstream.(*net.TCPConn), budget: -1}
		r.mu.Lock()
		r.links[l] = true
		r.mu.Unlock()
		wg.Go(func() {
			l.copyUp()
			l.reset()
		})
		wg.Go(func() {
			l.copyDown()
			l.reset()
			r.mu.Lock()
			delete(r.links, l)
			r.mu.Unlock()
		})
	}
}

// copyUp copies from the agent to the coordinator until the link ends.
func (l *link) copyUp() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.agent.Read(buf)
		l.relay.pass()
		if _, werr := l.coordinator.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

var errBudget = errors.New("the link breaks here")

// copyDown copies from the coordinator to the agent as far as the budget goes.
func (l *link) copyDown() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.coordinator.Read(buf)
		l.relay.pass()
		allowed, broken := l.spend(n)
		if _, werr := l.agent.Write(buf[:allowed]); err == nil {
			err = werr
		}
		if err == nil && broken {
			err = errBudget
		}
		if err != nil {
			return err
		}
	}
}

func (l *link) spend(n int) (allowed int, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.budget < 0 {
		return n, false
	}
	allowed = min(n, l.budget)
	l.budget -= allowed
	return allowed, l.budget == 0
}

// reset sends RST both ways.
func (l *link) reset() {
	for _, c := range []*net.TCPConn{l.agent, l.coordinator} {
		c.SetLinger(0)
		c.Close()
	}
}

// reset breaks all links at once.
func (r *relay) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.reset()
	}
}

// resetAfter breaks each link when so many more bytes went down: within a
// message, perhaps within a frame.
func (r *relay) resetAfter(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.mu.Lock()
		l.budget = bytes
		l.mu.Unlock()
	}
}
