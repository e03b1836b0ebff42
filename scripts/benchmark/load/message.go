package load

import (
	"bytes"
	"fmt"

	"github.com/musterhq/muster/bus/curve"
)

// Message is the frames of a ZeroMQ message.
type Message [][]byte

// Append appends the message as NULL peers send it.
func (m Message) Append(b []byte) []byte {
	for i, frame := range m {
		b = AppendFrame(b, m.flags(i), frame)
	}
	return b
}

// seal appends the message as CURVE peers send it: a MESSAGE for each frame.
func (m Message) seal(b []byte, s *curve.Session) ([]byte, error) {
	var err error
	for i, frame := range m {
		b = appendHeader(b, 0, len(frame)+curve.Overhead)
		if b, err = s.Seal(b, m.flags(i), frame); err != nil {
			return b, err
		}
	}
	return b, nil
}

// flags of the i-th frame; inside a MESSAGE they are the same.
func (m Message) flags(i int) byte {
	if i < len(m)-1 {
		return FlagMore
	}
	return 0
}

// listener reads answers that must be the same message again and again.
type listener struct {
	want    Message
	session *curve.Session // nil with NULL
	at      int            // the frame of want that comes next
}

// hear reads the whole frames at the start of b. It gives the number of answers
// that ended there, and the bytes read.
func (l *listener) hear(b []byte) (answers, used int, err error) {
	for {
		flags, body, size := nextFrame(b[used:])
		if size == 0 {
			return answers, used, nil
		}
		used += size
		if flags&FlagCommand != 0 {
			continue // PING and the like may come between any two frames
		}
		if l.session != nil {
			// In place: the body has been read and is ours.
			if flags, body, err = l.session.Open(body[curve.Overhead:curve.Overhead], body); err != nil {
				return answers, used, err
			}
			if flags&curve.Command != 0 {
				continue
			}
		}
		if !bytes.Equal(body, l.want[l.at]) || flags&FlagMore != l.want.flags(l.at) {
			return answers, used, fmt.Errorf("frame %d of an answer is %.40q with flags %#02x, not what was sent", l.at, body, flags)
		}
		if l.at++; l.at == len(l.want) {
			l.at = 0
			answers++
		}
	}
}
