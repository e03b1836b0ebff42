package curve

//lint:file-ignore SA1019 see cipher.go

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/crypto/poly1305"
)

// The flags that a frame may have inside its MESSAGE; never both.
const (
	More    = 0x01 // another frame of this message follows
	Command = 0x02 // a ZMTP command, such as PING
)

// Overhead is by how much MESSAGE is longer than what it carries: its name, a
// short nonce, and then, sealed, a sum and the flags.
const Overhead = 33

// ErrSpent says that a session has sealed all that its nonces allow, 2^64-1
// commands.
var ErrSpent = errors.New("curve: the session has no nonce left")

// Session seals and opens the frames of one connection. One goroutine may seal
// while another opens. It lasts as long as the connection, and its keys with it.
type Session struct {
	sealing, opening cipher
	sealed, opened   uint64 // the last short nonces
	broken           bool   // for opening
}

// Seal appends the MESSAGE that carries a frame to dst. The payload may lie just
// where its sealed form will, Overhead after the end of dst; otherwise it must
// not overlap. Seal allocates only where dst lacks the capacity.
func (s *Session) Seal(dst []byte, flags byte, payload []byte) ([]byte, error) {
	if err := s.count(flags); err != nil {
		return dst, err
	}
	start, size := len(dst), Overhead+len(payload)
	dst = slices.Grow(dst, size)[:start+size]
	command := dst[start:]
	copy(command, message)
	binary.BigEndian.PutUint64(command[8:], s.sealed)
	s.sealing.seal((*[16]byte)(command[16:]), command[32:], s.sealed, flags, payload)
	return dst, nil
}

// SealPieces is Seal for a payload that is not to be held twice: give is called
// with one piece of the MESSAGE after the other, which lies in buf. They are as
// long as buf, which has at least 1 KiB, but for the last. The sum comes first, so
// the payload is encrypted twice. After an error of give the session is of no use.
func (s *Session) SealPieces(buf []byte, flags byte, payload []byte, give func(piece []byte) error) error {
	if err := s.count(flags); err != nil {
		return err
	}
	sum := poly1305.New(s.sealing.sumKey(s.sealed))
	skip := len(message) + shortNonceSize + sum.Size()
	s.sealing.pieces(buf, s.sealed, flags, payload, func(piece []byte) error {
		sum.Write(piece[skip:])
		skip = 0
		return nil
	})
	command := append(buf[:0], message...)
	command = binary.BigEndian.AppendUint64(command, s.sealed)
	sum.Sum(command)
	return s.sealing.pieces(buf, s.sealed, flags, payload, give)
}

// count takes the next short nonce.
func (s *Session) count(flags byte) error {
	if flags > Command {
		return fmt.Errorf("curve: no frame has the flags %#02x", flags)
	}
	if s.sealed == math.MaxUint64 {
		return ErrSpent
	}
	s.sealed++
	return nil
}

// Open appends the payload of a MESSAGE to dst and gives the frame's flags. To
// open it where it lies, let dst be command[Overhead:Overhead]; otherwise the
// two must not overlap. Open allocates only where dst lacks the capacity.
//
// An error is a *Refusal, and every later call gives one too.
func (s *Session) Open(dst, command []byte) (flags byte, payload []byte, err error) {
	flags, payload, err = s.open(dst, command)
	if err != nil {
		s.broken = true
		return 0, dst, err
	}
	return flags, payload, nil
}

func (s *Session) open(dst, command []byte) (flags byte, payload []byte, err error) {
	if s.broken {
		return 0, nil, refuse(message, BadOrder, "the session is broken")
	}
	if err := expect(command, message, Overhead, math.MaxInt); err != nil {
		return 0, nil, err
	}
	count := binary.BigEndian.Uint64(command[8:])
	if count != s.opened+1 || count == 0 {
		return 0, nil, refuse(message, BadNonce, "short nonce %d after %d", count, s.opened)
	}
	flags, payload, ok := s.opening.open(dst, (*[16]byte)(command[16:]), command[32:], count)
	if !ok {
		return 0, nil, refuse(message, BadBox, "the box does not open")
	}
	if flags > Command {
		return 0, nil, refuse(message, BadFlags, "flags %#02x", flags)
	}
	s.opened = count
	return flags, payload, nil
}
