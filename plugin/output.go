package plugin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
)

// Output is what a program wrote to one stream.
type Output struct {
	Size   int64  // all that was read from the program
	SHA256 string // of all of it, hex
	Kept   []byte // head, then tail
	Head   int    // when truncated: this many of Kept are from the start
}

// Truncated reports whether the middle is missing from Kept.
func (o *Output) Truncated() bool { return int64(len(o.Kept)) < o.Size }

// Head is the beginning of a stream while its program runs: what is kept of it
// for certain, whatever follows. It only grows, up to half of the cap.
type Head struct{ c *capture }

// After returns a copy of at most limit bytes of the head behind the first n.
func (h Head) After(n, limit int) []byte {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	if n >= len(h.c.head) {
		return nil
	}
	return bytes.Clone(h.c.head[n:min(len(h.c.head), n+limit)])
}

// capture takes a stream of any length in bounded memory: the first half of
// its limit is kept as the head, and the last half as the tail.
type capture struct {
	mu   sync.Mutex // the pump may still be writing when the result is cut off
	sum  hash.Hash
	size int64
	head []byte
	tail []byte // a ring once it is full
	next int    // where the ring is written next
	half int

	grown func() // the head has grown; may be nil
}

func newCapture(limit int) *capture {
	return &capture{sum: sha256.New(), half: (limit + 1) / 2}
}

func (c *capture) Write(p []byte) (int, error) {
	if c.keep(p) && c.grown != nil {
		c.grown()
	}
	return len(p), nil
}

func (c *capture) keep(p []byte) (headGrew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Write(p)
	c.size += int64(len(p))
	if room := c.half - len(c.head); room > 0 {
		k := min(room, len(p))
		c.head = append(c.head, p[:k]...)
		p, headGrew = p[k:], k > 0
	}
	c.keepTail(p)
	return headGrew
}

func (c *capture) keepTail(p []byte) {
	if len(p) > c.half {
		p = p[len(p)-c.half:]
	}
	if room := c.half - len(c.tail); room > 0 {
		k := min(room, len(p))
		c.tail = append(c.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.next:], p)
		c.next = (c.next + k) % c.half
		p = p[k:]
	}
}

func (c *capture) output() Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := Output{Size: c.size, SHA256: hex.EncodeToString(c.sum.Sum(nil))}
	o.Kept = make([]byte, 0, len(c.head)+len(c.tail))
	o.Kept = append(o.Kept, c.head...)
	o.Kept = append(o.Kept, c.tail[c.next:]...)
	o.Kept = append(o.Kept, c.tail[:c.next]...)
	if o.Truncated() {
		o.Head = len(c.head)
	}
	return o
}
