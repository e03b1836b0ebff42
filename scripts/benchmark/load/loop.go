package load

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readSize = 64 << 10
	tick     = 100 * time.Millisecond // how long a stop may take
)

// loop serves some of the peers on a thread of its own.
type loop struct {
	poll  int
	peers []*peer

	message Message
	size    int    // of one message in plain
	plain   []byte // the message, as often as the window is large
	sealed  []byte
	buf     []byte

	window  int
	timing  bool
	start   time.Time
	times   []time.Duration // of round trips
	answers atomic.Int64
	_       [64]byte // the other loop's counter is not in this cache line
}

func newLoop(message Message) (*loop, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wire := message.Append(nil)
	return &loop{poll: poll, message: message, size: len(wire), plain: wire, buf: make([]byte, readSize), start: time.Now()}, nil
}

func (l *loop) now() time.Duration { return time.Since(l.start) }

// add makes the loop serve p.
func (l *loop) add(p *peer) error {
	p.index = int32(len(l.peers))
	l.peers = append(l.peers, p)
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: p.index}
	return unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, int(p.socket), &event)
}

// watch changes what p waits for.
func (l *loop) watch(p *peer, events uint32) error {
	return unix.EpollCtl(l.poll, unix.EPOLL_CTL_MOD, int(p.socket), &unix.EpollEvent{Events: events, Fd: p.index})
}

// run keeps window messages of each peer under way until stop.
func (l *loop) run(window int, stop *atomic.Bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.window = window
	for len(l.plain) < window*l.size {
		l.plain = append(l.plain, l.plain[:l.size]...)
	}
	for i, p := range l.peers {
		if err := p.fill(l); err != nil {
			return fmt.Errorf("peer %d: %w", i, err)
		}
	}
	events := make([]unix.EpollEvent, 256)
	for !stop.Load() {
		n, err := unix.EpollWait(l.poll, events, int(tick.Milliseconds()))
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if err := l.serve(l.peers[e.Fd], e.Events); err != nil {
				return fmt.Errorf("peer %d: %w", e.Fd, err)
			}
		}
	}
	return nil
}

func (l *loop) serve(p *peer, events uint32) error {
	if events&unix.EPOLLOUT != 0 && len(p.unsent) > 0 {
		if err := p.resume(l); err != nil {
			return err
		}
	}
	answers, err := p.hear(l)
	if err != nil {
		return err
	}
	l.answers.Add(int64(answers))
	return p.fill(l)
}

func (l *loop) close() {
	for _, p := range l.peers {
		p.socket.close()
	}
	unix.Close(l.poll)
}
