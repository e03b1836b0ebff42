package load

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/musterhq/muster/bus/curve"
)

// Flag bits of a ZMTP frame.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

// Message is the frames of a ZeroMQ message.
type Message [][]byte

// wire is the message as NULL peers send it.
func (m Message) wire() []byte {
	var b []byte
	for i, frame := range m {
		b = append(appendHeader(b, m.flags(i), len(frame)), frame...)
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
		return flagMore
	}
	return 0
}

func appendHeader(b []byte, flags byte, size int) []byte {
	if size <= 255 {
		return append(b, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
}

// nextFrame cuts the first frame off b. It is not whole if size is 0.
func nextFrame(b []byte) (flags byte, body []byte, size int) {
	if len(b) < 2 {
		return 0, nil, 0
	}
	flags, start, n := b[0], 2, uint64(b[1])
	if flags&flagLong != 0 {
		if len(b) < 9 {
			return 0, nil, 0
		}
		start, n = 9, binary.BigEndian.Uint64(b[1:])
	}
	if uint64(len(b)-start) < n {
		return 0, nil, 0
	}
	size = start + int(n)
	return flags, b[start:size], size
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
		if flags&flagCommand != 0 {
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
		if !bytes.Equal(body, l.want[l.at]) || flags&flagMore != l.want.flags(l.at) {
			return answers, used, fmt.Errorf("frame %d of an answer is %.40q with flags %#02x, not what was sent", l.at, body, flags)
		}
		if l.at++; l.at == len(l.want) {
			l.at = 0
			answers++
		}
	}
}
