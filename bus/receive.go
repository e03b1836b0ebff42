package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// readLoop receives and dispatches until the link fails or is closed.
func (p *Peer) readLoop(ctx context.Context) error {
	for {
		err := p.readMessage(ctx)
		if err != nil && p.saysFarewell(err) {
			p.Close(err)
		}
		if p.closing.Load() {
			return p.drain()
		}
		if err != nil {
			return err
		}
	}
}

// saysFarewell says whether the peer shall still get what is queued, and tells
// it of a limit that it broke: it would come back with the same message.
func (p *Peer) saysFarewell(err error) bool {
	var r *refusal
	if !errors.As(err, &r) {
		return errors.Is(err, ErrHangUp) || errors.As(err, new(*NackError))
	}
	switch r.reason {
	case "frame_size", "message_size", "frame_count":
		p.sendNack(nil, nil, &NackError{Reason: musterv1.Nack_MALFORMED, Detail: r.detail})
		return true
	}
	return false
}

// drain reads and drops what still comes while the queue is flushed: closing
// with bytes unread would make the kernel drop what we sent. It ends when the
// peer closes, or by the timer of Close.
func (p *Peer) drain() error {
	p.in.disarm()
	for {
		if _, err := p.nc.Read(p.in.buf); err != nil {
			return err
		}
	}
}

// readMessage receives one message and dispatches it.
func (p *Peer) readMessage(ctx context.Context) error {
	if err := p.await(); err != nil {
		return err
	}
	m := messages.Get().(*message)
	defer m.release()
	var err error
	if p.crypt != nil {
		err = p.receiveSealed(ctx, m)
	} else {
		err = p.receive(ctx, m)
	}
	if err != nil {
		return p.explain(err)
	}
	p.in.disarm()
	if m.frames == 0 || p.closing.Load() {
		return nil
	}
	return dispatch(p, m)
}

// await waits for the first byte of a message, for ever, unless the peer
// promised something else.
func (p *Peer) await() error {
	if p.in.r < p.in.w {
		return nil
	}
	if p.in.ttl > 0 {
		p.in.arm(time.Now().Add(p.in.ttl))
	}
	if err := p.in.need(1); err != nil {
		return p.silent(err)
	}
	return nil
}

// silent gives a reason to an error of await.
//
//go:noinline
func (p *Peer) silent(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refuse("silent", "the peer promised to be heard within %v", p.in.ttl)
	}
	return err
}

// receive reads one message into m and deals with the ZMTP commands in it; m
// stays without frames when a command came in place of a message.
func (p *Peer) receive(ctx context.Context, m *message) error {
	p.in.begin(p.bus.cfg.MessageTime)
	for more := true; more; {
		flags, size, err := p.in.header()
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			if err := p.command(m, flags, size); err != nil || m.frames == 0 {
				return err
			}
			continue
		}
		more = flags&flagMore != 0
		if err := p.announce(ctx, m, size, more); err != nil {
			return err
		}
		if err := m.read(p.in, int(size)); err != nil {
			return err
		}
	}
	return nil
}

// announce checks the next frame of m against the limits, and waits for what m
// takes of the budget.
func (p *Peer) announce(ctx context.Context, m *message, size uint64, more bool) (err error) {
	limit := p.limit.Load()
	if err := m.announce(size, uint64(limit), p.bus.cfg.MaxFrames); err != nil {
		return err
	}
	if m.free != nil || m.size <= freeBytes {
		return nil
	}
	want := int64(m.size)
	if more && m.frames < len(m.ends) {
		want = limit // nobody knows what follows
	}
	m.free, err = p.bus.budget.reserve(ctx, p, want)
	p.in.begin(p.bus.cfg.MessageTime) // waiting does not count
	return err
}

// explain gives a reason to an error in the middle of a message.
func (p *Peer) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("message_time", "a message took longer than %v", p.bus.cfg.MessageTime)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("in the middle of a message: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// command deals with one ZMTP command. m lends it its buffer.
func (p *Peer) command(m *message, flags byte, size uint64) error {
	switch {
	case flags&flagMore != 0:
		return refuse("command_more", "a command with the MORE bit")
	case size > maxCommand:
		return refuse("command_size", "a command of %d bytes, limit %d", size, maxCommand)
	}
	kept := len(m.buf)
	buf, err := p.in.appendTo(m.buf, int(size))
	m.buf = buf[:kept]
	if err != nil {
		return err
	}
	return p.obey(buf[kept:])
}

// obey does what a command says, or counts it, or refuses it.
func (p *Peer) obey(command []byte) error {
	name, body, ok := splitCommand(command)
	if !ok {
		return refuse("command_name", "a command without a name")
	}
	switch string(name) {
	case "PING":
		p.bus.metrics.commands.count("PING")
		return p.answerPing(body)
	case "READY", "ERROR", "HELLO", "WELCOME", "INITIATE", "MESSAGE":
		return refuse("command_misplaced", "%s after the handshake", name)
	case "PONG", "SUBSCRIBE", "CANCEL":
		p.bus.metrics.commands.count(string(name))
	default:
		p.bus.metrics.commands.count("other")
	}
	return nil
}

const maxPingContext = 16

// answerPing answers a PING and notes the time within which the peer promises
// to be heard again, which is in tenths of a second.
func (p *Peer) answerPing(body []byte) error {
	if len(body) < 2 || len(body) > 2+maxPingContext {
		return refuse("ping", "a PING of %d bytes", len(body))
	}
	p.in.ttl = (time.Duration(body[0])<<8 | time.Duration(body[1])) * time.Second / 10
	p.out.answerPing(body[2:])
	return nil
}
