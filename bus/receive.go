package bus

import (
	"context"
	"time"
)

// receive reads one message into m and deals with the ZMTP commands on the
// way. The function it returns, never nil, gives back what m took of the
// budget.
func (p *Peer) receive(ctx context.Context, m *message) (release func(), err error) {
	release = func() {}
	in, cfg := p.in, &p.bus.cfg
	in.begin(cfg.MessageTime)
	for more := true; more; {
		flags, size, err := in.header()
		if err != nil {
			return release, noEOF(err)
		}
		if flags&flagCommand != 0 {
			if err := p.command(m, flags, size); err != nil {
				return release, err
			}
			if m.frames == 0 && in.r == in.w {
				// Nothing but a command: wait for a message without a limit.
				in.disarm()
				if err := p.await(); err != nil {
					return release, err
				}
				in.begin(cfg.MessageTime)
			}
			continue
		}
		limit := uint64(p.limit.Load())
		m.frames++
		m.size += size
		switch {
		case m.frames > cfg.MaxFrames:
			return release, refuse("frame_count", "a message of more than %d frames", cfg.MaxFrames)
		case size > limit:
			return release, refuse("frame_size", "a frame of %d bytes, limit %d", size, limit)
		case m.size > limit:
			return release, refuse("message_size", "a message of more than %d bytes", limit)
		}
		more = flags&flagMore != 0
		if m.reserved == 0 && m.size > freeBytes {
			want := m.size
			if more {
				want = limit // nobody knows what follows, and who waits must not hold anything
			}
			if release, err = p.bus.budget.reserve(ctx, p, int64(want)); err != nil {
				return func() {}, err
			}
			m.reserved = want
			in.begin(cfg.MessageTime)
		}
		if m.frames > len(m.ends) {
			err = in.skip(int(size))
		} else {
			m.buf, err = in.appendTo(m.buf, int(size))
			m.ends[m.frames-1] = len(m.buf)
		}
		if err != nil {
			return release, err
		}
	}
	return release, nil
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
	name, body, ok := splitCommand(buf[kept:])
	if !ok {
		return refuse("command_name", "a command without a name")
	}
	switch string(name) {
	case "PING":
		p.bus.metrics.commands.count("PING")
		return p.ping(body)
	case "READY", "ERROR", "HELLO", "WELCOME", "INITIATE", "MESSAGE":
		return refuse("command_misplaced", "a %s command after the handshake", name)
	case "PONG", "SUBSCRIBE", "CANCEL":
		p.bus.metrics.commands.count(string(name))
	default:
		p.bus.metrics.commands.count("other")
	}
	return nil
}

const maxPingContext = 16

// ping answers a PING and notes the time within which the peer promises to be
// heard again, which is in tenths of a second.
func (p *Peer) ping(body []byte) error {
	if len(body) < 2 || len(body) > 2+maxPingContext {
		return refuse("ping", "a PING of %d bytes", len(body))
	}
	p.in.ttl = (time.Duration(body[0])<<8 | time.Duration(body[1])) * time.Second / 10
	p.out.pong(body[2:])
	return nil
}
