package agentd

import (
	"bytes"
	"io"
)

// span is a range of bytes in the journal file.
type span struct{ off, size int64 }

// scan reads a journal of the given size and calls fn for each intact record,
// in order. It returns what was not intact. Behind damage it goes on at the
// next record that is whole.
func scan(f io.ReaderAt, size int64, fn func(record, span)) (damaged []span) {
	s := scanner{f: f, size: size}
	for off := int64(0); off < size; {
		r, n, ok := s.record(off)
		if ok {
			fn(r, span{off, n})
			off += n
			continue
		}
		next := s.next(off + 1)
		damaged = append(damaged, span{off, next - off})
		off = next
	}
	return damaged
}

type scanner struct {
	f    io.ReaderAt
	size int64
	buf  []byte // what was read last
	at   int64  // and from where
}

// record reads the one at off.
func (s *scanner) record(off int64) (r record, size int64, ok bool) {
	h := s.bytes(off, frameHeader)
	if h == nil {
		return r, 0, false
	}
	n, ok := frameSize(h)
	if !ok {
		return r, 0, false
	}
	b := s.bytes(off, frameHeader+n)
	if b == nil {
		return r, 0, false
	}
	r, ok = decode(b[:frameHeader], b[frameHeader:])
	return r, int64(len(b)), ok
}

// next finds the first whole record at or after off, or the end.
func (s *scanner) next(off int64) int64 {
	for off < s.size {
		b := s.bytes(off, int(min(s.size-off, 64<<10)))
		if b == nil { // cannot be read
			off += 4 << 10
			continue
		}
		i := bytes.Index(b, []byte(magic))
		if i < 0 {
			off += int64(max(1, len(b)-len(magic)+1))
			continue
		}
		off += int64(i)
		if _, _, ok := s.record(off); ok {
			return off
		}
		off++
	}
	return s.size
}

// bytes returns n bytes at off, or nil if they are not there or unreadable.
// They are good until the next call.
func (s *scanner) bytes(off int64, n int) []byte {
	if off+int64(n) > s.size {
		return nil
	}
	if off < s.at || off+int64(n) > s.at+int64(len(s.buf)) {
		want := min(max(int64(n), 1<<20), s.size-off)
		if int64(cap(s.buf)) < want {
			s.buf = make([]byte, want)
		}
		got, err := s.f.ReadAt(s.buf[:want], off)
		s.buf, s.at = s.buf[:got], off
		if got < n && err != nil {
			return nil
		}
	}
	i := off - s.at
	return s.buf[i : i+int64(n)]
}
