package curve

import (
	"crypto/rand"
	"sync"
	"time"

	"golang.org/x/crypto/nacl/secretbox"
)

const (
	cookieSize   = longNonceSize + 2*keySize + secretbox.Overhead
	cookiePeriod = 30 * time.Second
)

// cookieJar bakes cookies: the one place where a server's transient key is kept
// between WELCOME and INITIATE. A cookie key bakes for one period and opens for
// one more, so a cookie is good for 30 to 60 seconds. Then the key is wiped, and
// nobody can read that cookie any more.
//
// The jar needs no Close: its timer ends when nothing is left to wipe.
type cookieJar struct {
	mu      sync.Mutex
	fresh   *[keySize]byte // bakes and opens; nil until it is needed
	stale   *[keySize]byte // opens; nil after a quiet period
	turning bool           // turn is due
}

// bake seals the transient keys of a connection, the client's public one and our
// secret one. The cookie starts with its long nonce, and none is given twice.
func (j *cookieJar) bake(client *PublicKey, secret SecretKey) (cookie [cookieSize]byte) {
	rand.Read(cookie[:longNonceSize])
	plain := make([]byte, 0, 2*keySize)
	plain = append(plain, client[:]...)
	plain = append(plain, secret.key().Bytes()...)
	defer clear(plain[:cap(plain)])

	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fresh == nil {
		j.fresh = new([keySize]byte)
		rand.Read(j.fresh[:])
	}
	if !j.turning {
		j.turning = true
		time.AfterFunc(cookiePeriod, j.turn)
	}
	secretbox.Seal(cookie[:longNonceSize], plain, nonce("COOKIE--", cookie[:longNonceSize]), j.fresh)
	return cookie
}

// open gives back what bake sealed; not ok if the cookie is expired or not ours.
func (j *cookieJar) open(cookie []byte) (client PublicKey, secret SecretKey, ok bool) {
	plain, ok := j.unseal(cookie)
	if !ok {
		return client, secret, false
	}
	defer clear(plain)
	secret, err := newSecretKey((*[keySize]byte)(plain[keySize:]))
	return PublicKey(plain[:keySize]), secret, err == nil
}

func (j *cookieJar) unseal(cookie []byte) (plain []byte, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range []*[keySize]byte{j.fresh, j.stale} {
		if key == nil {
			continue
		}
		plain, ok = secretbox.Open(nil, cookie[longNonceSize:], nonce("COOKIE--", cookie[:longNonceSize]), key)
		if ok {
			return plain, true
		}
	}
	return nil, false
}

// turn wipes the stale key and retires the fresh one.
func (j *cookieJar) turn() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stale != nil {
		clear(j.stale[:])
	}
	j.stale, j.fresh = j.fresh, nil
	if j.turning = j.stale != nil; j.turning {
		time.AfterFunc(cookiePeriod, j.turn)
	}
}
