package bus

import "github.com/musterhq/muster/bus/curve"

// PublicKey names a peer. String gives it in Z85, 40 characters, as everywhere
// in ZeroMQ; two peers are the same if their keys are equal.
type PublicKey = curve.PublicKey

// SecretKey is the half of a key pair that stays at home. Z85 gives it for the
// file it is kept in, Public the other half; any other way to print it gives a
// mask. The zero SecretKey is no key, see IsZero.
type SecretKey = curve.SecretKey

// NewKeyPair makes a key pair.
func NewKeyPair() (PublicKey, SecretKey, error) { return curve.NewKeyPair() }

// ParsePublicKey reads a public key from Z85 and refuses those that no peer can
// have.
func ParsePublicKey(z85 string) (PublicKey, error) { return curve.ParsePublicKey(z85) }

// ParseSecretKey reads a secret key from Z85. Its errors do not quote it.
func ParseSecretKey(z85 string) (SecretKey, error) { return curve.ParseSecretKey(z85) }
