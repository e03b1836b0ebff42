//go:build !amd64 || purego

package curve

// xorSixes leaves all to x/crypto.
func xorSixes(_, _ []byte, _ *[16]byte, _ *[keySize]byte) int { return 0 }
