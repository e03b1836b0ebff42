package curve

import (
	"crypto/rand"
	"encoding/binary"

	"golang.org/x/crypto/nacl/secretbox"
)

// A nonce is a prefix, which says what the box is for, and the rest, which is
// sent: 16 random bytes (long) where a long-term key seals, or 8 bytes of a
// connection's count of commands (short) where a transient key does.
const (
	nonceSize      = 24
	longNonceSize  = 16
	shortNonceSize = 8
)

func nonce(prefix string, rest []byte) *[nonceSize]byte {
	var whole [nonceSize]byte
	copy(whole[copy(whole[:], prefix):], rest)
	return &whole
}

// sealLong appends a fresh long nonce and the box of plain.
func sealLong(command []byte, prefix string, plain []byte, key *[keySize]byte) []byte {
	var long [longNonceSize]byte
	rand.Read(long[:])
	command = append(command, long[:]...)
	return secretbox.Seal(command, plain, nonce(prefix, long[:]), key)
}

// openLong opens what sealLong appended.
func openLong(sealed []byte, prefix string, key *[keySize]byte) (plain []byte, ok bool) {
	return secretbox.Open(nil, sealed[longNonceSize:], nonce(prefix, sealed[:longNonceSize]), key)
}

// sealShort appends a short nonce and the box of plain.
func sealShort(command []byte, prefix string, count uint64, plain []byte, key *[keySize]byte) []byte {
	command = binary.BigEndian.AppendUint64(command, count)
	short := command[len(command)-shortNonceSize:]
	return secretbox.Seal(command, plain, nonce(prefix, short), key)
}

// openShort opens what sealShort appended.
func openShort(sealed []byte, prefix string, key *[keySize]byte) (count uint64, plain []byte, ok bool) {
	short := sealed[:shortNonceSize]
	plain, ok = secretbox.Open(nil, sealed[shortNonceSize:], nonce(prefix, short), key)
	return binary.BigEndian.Uint64(short), plain, ok
}

func zero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}
