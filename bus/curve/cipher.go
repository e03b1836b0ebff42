package curve

// The parts of NaCl's box are deprecated for new protocols, and this is an old
// one. Put together here they spare what secretbox does again for each message:
// deriving the cipher's key, and a copy to put the flags before the payload.
//
//lint:file-ignore SA1019 see above

import (
	"encoding/binary"
	"slices"

	"golang.org/x/crypto/poly1305"
	"golang.org/x/crypto/salsa20/salsa"
)

// deriveKey makes a key of another and 16 bytes: box does it with the point that
// two key pairs share, secretbox with its key and the start of the nonce.
func deriveKey(key *[keySize]byte, input *[16]byte) (derived [keySize]byte) {
	salsa.HSalsa20(&derived, input, key, &salsa.Sigma)
	return derived
}

// cipher is secretbox for nonces of one prefix and a text of one byte, the
// flags, and the payload.
type cipher struct{ key [keySize]byte }

func newCipher(shared *[keySize]byte, prefix string) cipher {
	return cipher{deriveKey(shared, (*[16]byte)([]byte(prefix)))}
}

// seal fills box, one byte longer than payload, and its sum. The payload is
// box[1:] or lies apart.
func (c *cipher) seal(sum *[16]byte, box []byte, count uint64, flags byte, payload []byte) {
	var head head
	head.text()[0] = flags
	n := copy(head.text()[1:], payload)
	counter := head.crypt(c, count, 1+n)
	copy(box, head.text()[:1+n])
	if n < len(payload) {
		salsa.XORKeyStream(box[1+n:], payload[n:], &counter, &c.key)
	}
	poly1305.Sum(sum, box, head.sumKey())
}

// pieces gives what seal puts into box piece by piece, in buf. It leaves the
// first 32 bytes of the first piece as they are in buf.
func (c *cipher) pieces(buf []byte, count uint64, flags byte, payload []byte, give func(piece []byte) error) error {
	buf = buf[:len(buf)&^63] // whole blocks
	var head head
	head.text()[0] = flags
	n := copy(head.text()[1:], payload)
	counter := head.crypt(c, count, 1+n)
	used := 32 + copy(buf[32:], head.text()[:1+n])
	for payload = payload[n:]; ; used = 0 {
		n := min(len(payload), len(buf)-used)
		salsa.XORKeyStream(buf[used:used+n], payload[:n], &counter, &c.key)
		if err := give(buf[:used+n]); err != nil || n == len(payload) {
			return err
		}
		payload = payload[n:]
		block := binary.LittleEndian.Uint64(counter[8:])
		binary.LittleEndian.PutUint64(counter[8:], block+uint64(n/64))
	}
}

// sumKey gives the key of the sum.
func (c *cipher) sumKey(count uint64) *[32]byte {
	var head head
	head.crypt(c, count, 0)
	return head.sumKey()
}

// open appends the payload to dst, which ends where it lies in box or lies
// apart. Nothing is written if the sum is wrong.
func (c *cipher) open(dst []byte, sum *[16]byte, box []byte, count uint64) (flags byte, payload []byte, ok bool) {
	var head head
	n := copy(head.text(), box)
	counter := head.crypt(c, count, n)
	if !poly1305.Verify(sum, box, head.sumKey()) {
		return 0, dst, false
	}
	start, size := len(dst), len(box)-1
	dst = slices.Grow(dst, size)[:start+size]
	copy(dst[start:], head.text()[1:n])
	if n < len(box) {
		salsa.XORKeyStream(dst[start+n-1:], box[n:], &counter, &c.key)
	}
	return head.text()[0], dst, true
}

// head is the first four blocks of the cipher's stream, with text in them: the
// first half block keys the sum. Four blocks take as long as two alone.
type head [256]byte

func (h *head) sumKey() *[32]byte { return (*[32]byte)(h[:]) }
func (h *head) text() []byte      { return h[32:] }

// crypt encrypts or decrypts n bytes of text in place, and gives the counter for
// the text that follows.
func (h *head) crypt(c *cipher, count uint64, n int) (counter [16]byte) {
	binary.BigEndian.PutUint64(counter[:], count)
	size := 32 + n
	if size > len(h)/2 {
		size = len(h)
	}
	salsa.XORKeyStream(h[:size], h[:size], &counter, &c.key)
	counter[8] = 4
	return counter
}
