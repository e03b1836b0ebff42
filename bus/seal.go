package bus

import (
	"encoding/binary"

	"github.com/musterhq/muster/bus/curve"
)

// sealedMessage is by how much CURVE makes a message longer, at most: each of its
// three frames grows, and may then need a long header.
const sealedMessage = 3 * (curve.Overhead + maxHeader - 2)

// seal is append for a link with CURVE: each frame in b becomes a MESSAGE. They
// are sealed here and not when they are queued, for their count says the order,
// and what is queued may be shared by many peers.
func (w *writer) seal(b []byte) {
	for len(b) > 0 && w.err == nil {
		var flags byte
		var payload []byte
		flags, payload, b = cutFrame(b)
		size := curve.Overhead + len(payload)
		if len(w.buf)+maxHeader+size > cap(w.buf) {
			w.flush()
		}
		w.buf = appendHeader(w.buf, 0, size)
		if len(w.buf)+size <= cap(w.buf) {
			w.buf, w.err = w.o.p.crypt.Seal(w.buf, flags, payload)
		} else {
			w.sealLarge(flags, payload)
		}
	}
}

// sealLarge seals a frame piece by piece: a slow peer shall not cost a sealed
// copy of it.
func (w *writer) sealLarge(flags byte, payload []byte) {
	w.write(w.buf)
	w.buf = w.buf[:0]
	err := w.o.p.crypt.SealPieces(w.buf[:cap(w.buf)], flags, payload, func(piece []byte) error {
		w.write(piece)
		return w.err
	})
	if w.err == nil {
		w.err = err
	}
}

// cutFrame cuts the first frame off what we encoded, and gives its flags as they
// are inside a MESSAGE.
func cutFrame(b []byte) (flags byte, payload, rest []byte) {
	header, size := 2, int(b[1])
	if b[0]&flagLong != 0 {
		header, size = maxHeader, int(binary.BigEndian.Uint64(b[1:]))
	}
	switch {
	case b[0]&flagMore != 0:
		flags = curve.More
	case b[0]&flagCommand != 0:
		flags = curve.Command
	}
	return flags, b[header : header+size], b[header+size:]
}
