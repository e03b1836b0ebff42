package bus

import (
	"context"

	"github.com/musterhq/muster/bus/curve"
)

// receiveSealed is receive for a link with CURVE: each frame came in a MESSAGE,
// and only when that is open does it say whether it is a command, and whether
// others follow. The length says enough to keep the limits before it is read.
func (p *Peer) receiveSealed(ctx context.Context, m *message) error {
	p.in.begin(p.bus.cfg.MessageTime)
	for more := true; more; {
		size, err := p.in.sealedHeader()
		if err != nil {
			return err
		}
		large := size > maxCommand // only a frame of a message may be
		if large {
			if m.frames >= len(m.ends) {
				return refuse("frame_count", "frame %d is to be ignored, but has to be opened: of %d bytes, limit %d", m.frames+1, size, maxCommand)
			}
			if err := p.announce(ctx, m, size, true); err != nil {
				return err
			}
		}
		from := len(m.buf)
		flags, err := m.open(p.in, p.crypt, int(size))
		if err != nil {
			return err
		}
		if flags == curve.Command {
			if large {
				return refuse("command_size", "a command of %d bytes, limit %d", size, maxCommand)
			}
			command := m.buf[from:]
			m.buf = m.buf[:from]
			if err := p.obey(command); err != nil || m.frames == 0 {
				return err
			}
			continue
		}
		more = flags == curve.More
		if !large {
			if err := p.announce(ctx, m, size, more); err != nil {
				return err
			}
		}
		m.keep(from)
	}
	return nil
}

// sealedHeader reads the header of a MESSAGE and returns the size of the frame
// in it.
func (in *inbox) sealedHeader() (size uint64, err error) {
	flags, size, err := in.header()
	switch {
	case err != nil:
		return 0, err
	case flags&^flagLong != 0:
		return 0, refuse("curve_clear", "a frame that is not sealed")
	case size < curve.Overhead:
		return 0, refuse("curve_size", "a MESSAGE of %d bytes, want at least %d", size, curve.Overhead)
	}
	return size - curve.Overhead, nil
}

// open reads a MESSAGE and appends the frame of that size in it to buf.
func (m *message) open(in *inbox, crypt *curve.Session, size int) (flags byte, err error) {
	from, sealed := len(m.buf), size+curve.Overhead
	if sealed <= smallInbox {
		if err := in.need(sealed); err != nil {
			return 0, noEOF(err)
		}
		flags, m.buf, err = crypt.Open(m.buf, in.take(sealed))
		return flags, refuseMessage(err)
	}
	buf, err := in.appendTo(m.buf, sealed)
	if err != nil {
		return 0, err
	}
	message := buf[from:]
	flags, payload, err := crypt.Open(message[curve.Overhead:curve.Overhead], message)
	m.buf = append(buf[:from], payload...)
	return flags, refuseMessage(err)
}

// refuseMessage gives a reason to a MESSAGE that cannot be opened. What was
// repeated, left out, moved or changed on the way ends the link without a word.
func refuseMessage(err error) error {
	if err == nil {
		return nil
	}
	return refuseCurve(err)
}
