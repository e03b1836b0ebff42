package curve

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

const keySize = 32

// PublicKey names a peer. Two peers are the same if their keys are equal.
// It prints as 40 characters of Z85, as everywhere in ZeroMQ.
type PublicKey [keySize]byte

// ParsePublicKey reads a key from Z85 and refuses those that no peer can have.
// Its errors don't quote the text: somebody may have taken the wrong key.
func ParsePublicKey(text string) (PublicKey, error) {
	raw, err := decodeZ85(text)
	key := PublicKey(raw)
	if err == nil {
		err = key.check()
	}
	if err != nil {
		return PublicKey{}, fmt.Errorf("public key: %w", err)
	}
	return key, nil
}

func (k PublicKey) String() string { return encodeZ85((*[keySize]byte)(&k)) }

// Fingerprint names the key in short: the first 32 hex digits of the SHA-256 of
// its 32 bytes. Unlike Z85 it fits into paths and command lines as it is.
func (k PublicKey) Fingerprint() string {
	h := sha256.Sum256(k[:])
	return hex.EncodeToString(h[:16])
}

// MarshalText gives the key in Z85.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is ParsePublicKey.
func (k *PublicKey) UnmarshalText(text []byte) error {
	key, err := ParsePublicKey(string(text))
	if err == nil {
		*k = key
	}
	return err
}

var (
	errSpelling = errors.New("no public key is written like this (not below 2^255-19)")
	errLowOrder = errors.New("a key of low order is no secret to anybody")
)

// check refuses what no key pair has. Costs one scalar multiplication; where a
// shared key is computed anyway, that refuses the same keys.
func (k *PublicKey) check() error {
	key, err := checker()
	if err == nil {
		_, err = key.shared(k)
	}
	return err
}

// checker is a secret key that nobody keeps: any serves to tell low order.
var checker = sync.OnceValues(func() (SecretKey, error) {
	_, secret, err := NewKeyPair()
	return secret, err
})

// canonical reports whether the key is a number below 2^255-19. X25519 takes
// others for their remainder, which would give one peer several names.
func (k *PublicKey) canonical() bool {
	if k[31] != 0x7f {
		return k[31] < 0x7f
	}
	for _, b := range k[1:31] {
		if b != 0xff {
			return true
		}
	}
	return k[0] < 0xed
}

// SecretKey is the half of a key pair that stays at home. It shows itself only
// by Z85; any other way to print it gives a mask, or an address.
type SecretKey struct {
	key func() *ecdh.PrivateKey // in the private field of a struct fmt passes our Format by, and follows a pointer
}

func hide(key *ecdh.PrivateKey) SecretKey {
	return SecretKey{func() *ecdh.PrivateKey { return key }}
}

// NewKeyPair makes a key pair.
func NewKeyPair() (PublicKey, SecretKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return PublicKey{}, SecretKey{}, fmt.Errorf("curve: make a key pair: %w", err)
	}
	secret := hide(key)
	return secret.Public(), secret, nil
}

// ParseSecretKey reads a key from Z85. Its errors don't quote the text.
func ParseSecretKey(text string) (SecretKey, error) {
	raw, err := decodeZ85(text)
	if err != nil {
		return SecretKey{}, fmt.Errorf("secret key: %w", err)
	}
	if raw == [keySize]byte{} {
		return SecretKey{}, errors.New("secret key: all zero")
	}
	return newSecretKey(&raw)
}

func newSecretKey(raw *[keySize]byte) (SecretKey, error) {
	key, err := ecdh.X25519().NewPrivateKey(raw[:])
	if err != nil {
		return SecretKey{}, fmt.Errorf("secret key: %w", err)
	}
	return hide(key), nil
}

// IsZero reports that there is no key: nothing else may be asked of it.
func (k SecretKey) IsZero() bool { return k.key == nil }

// Public gives the other half.
func (k SecretKey) Public() PublicKey { return PublicKey(k.key().PublicKey().Bytes()) }

// Z85 gives the key in the clear, for the file it is kept in.
func (k SecretKey) Z85() string { return encodeZ85((*[keySize]byte)(k.key().Bytes())) }

const mask = "curve.SecretKey(***)"

func (k SecretKey) String() string { return mask }

// Format prints the mask for every verb.
func (k SecretKey) Format(state fmt.State, _ rune) { io.WriteString(state, mask) }

// LogValue logs the mask.
func (k SecretKey) LogValue() slog.Value { return slog.StringValue(mask) }

// shared gives the key that both ends of a box compute; it refuses what no key
// pair has. NaCl calls it beforenm and x/crypto Precompute, which computes the
// public key on each call, too, and takes twice as long.
func (k SecretKey) shared(peer *PublicKey) (*[keySize]byte, error) {
	if !peer.canonical() {
		return nil, errSpelling
	}
	public, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		return nil, err
	}
	point, err := k.key().ECDH(public)
	if err != nil { // all zero, whatever our key: the peer's is of low order
		return nil, errLowOrder
	}
	key := deriveKey((*[keySize]byte)(point), &[16]byte{})
	return &key, nil
}
