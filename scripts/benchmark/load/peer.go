package load

import (
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// peer is one connection.
type peer struct {
	socket   socket
	index    int32 // in its loop
	listener listener

	rest     []byte // read, the start of a frame
	unsent   []byte // what the socket did not take
	underWay int    // messages without an answer
	sentAt   time.Duration
}

// fill sends the message as often as the window has room for it.
func (p *peer) fill(l *loop) error {
	n := l.window - p.underWay
	if n <= 0 {
		return nil
	}
	p.underWay = l.window
	if l.timing {
		p.sentAt = l.now()
	}
	b := l.plain[:n*l.size]
	if s := p.listener.session; s != nil {
		b = l.sealed[:0]
		for range n {
			var err error
			if b, err = l.message.seal(b, s); err != nil {
				return err
			}
		}
		l.sealed = b
	}
	if len(p.unsent) > 0 {
		p.unsent = append(p.unsent, b...)
		return nil
	}
	return p.send(l, b)
}

// send sends b, now or, if the socket takes no more, when it does.
func (p *peer) send(l *loop, b []byte) error {
	for len(b) > 0 {
		n, errno := p.socket.send(b)
		if errno == unix.EAGAIN {
			p.unsent = append(p.unsent[:0], b...)
			return l.watch(p, unix.EPOLLIN|unix.EPOLLOUT)
		} else if errno != 0 {
			return fmt.Errorf("send: %w", errno)
		}
		b = b[n:]
	}
	return nil
}

// resume sends what was left unsent.
func (p *peer) resume(l *loop) error {
	b := p.unsent
	p.unsent = nil
	if err := p.send(l, b); err != nil || len(p.unsent) > 0 {
		return err
	}
	return l.watch(p, unix.EPOLLIN)
}

// hear reads what has come, and gives the number of answers in it.
func (p *peer) hear(l *loop) (answers int, err error) {
	held := copy(l.buf, p.rest)
	n, errno := p.socket.receive(l.buf[held:])
	switch {
	case errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("receive: %w", errno)
	case n == 0:
		return 0, fmt.Errorf("receive: %w", io.EOF)
	}
	b := l.buf[:held+n]
	answers, used, err := p.listener.hear(b)
	if err != nil {
		return 0, err
	}
	if answers > p.underWay {
		return 0, fmt.Errorf("%d answers to %d messages", answers, p.underWay)
	}
	p.rest = append(p.rest[:0], b[used:]...)
	p.underWay -= answers
	if l.timing && answers > 0 {
		l.times = append(l.times, l.now()-p.sentAt)
	}
	return answers, nil
}
