package load

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Flag bits of a ZMTP frame.
const (
	FlagMore    = 0x01
	flagLong    = 0x02
	FlagCommand = 0x04
)

// AppendFrame appends one frame as NULL peers send it.
func AppendFrame(b []byte, flags byte, body []byte) []byte {
	return append(appendHeader(b, flags, len(body)), body...)
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

const maxFrame = 1 << 20

// ReadFrame reads one frame of a NULL peer, for those who keep connections of
// their own; it blocks. The body is valid until in is read again. A frame of
// more than 1 MiB is an error.
func ReadFrame(in *bufio.Reader) (flags byte, body []byte, err error) {
	head, err := in.Peek(2)
	if err != nil {
		return 0, nil, err
	}
	flags, size := head[0], uint64(head[1])
	if flags&flagLong != 0 {
		if head, err = in.Peek(9); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes came", size)
	}
	start := len(head)
	if whole := start + int(size); whole <= in.Size() {
		b, err := in.Peek(whole)
		if err != nil {
			return 0, nil, err
		}
		in.Discard(whole) // what was peeked stays where it is
		return flags, b[start:], nil
	}
	in.Discard(start)
	body = make([]byte, size)
	_, err = io.ReadFull(in, body)
	return flags, body, err
}
