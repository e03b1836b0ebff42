package curve

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// edit gives a changed copy.
func edit(command []byte, change func([]byte)) []byte {
	command = bytes.Clone(command)
	change(command)
	return command
}

// The commands of a good exchange, each with a fresh taker in the state for it.
func (e *exchange) takers() map[string]struct {
	command []byte
	take    func([]byte) error
} {
	return map[string]struct {
		command []byte
		take    func([]byte) error
	}{
		"HELLO":    {e.hello, func(c []byte) error { h := e.atHello; _, err := h.Hello(c); return err }},
		"WELCOME":  {e.welcome, func(c []byte) error { h := e.atWelcome; return h.Welcome(c) }},
		"INITIATE": {e.initiate, func(c []byte) error { h := e.atInitiate; _, _, err := h.Initiate(c); return err }},
		"READY":    {e.ready, func(c []byte) error { h := e.atReady; _, _, err := h.Ready(c); return err }},
		"MESSAGE": {
			func() []byte { s := e.clientSession; c, _ := s.Seal(nil, More, []byte("payload")); return c }(),
			func(c []byte) error { s := e.serverSession; _, _, err := s.Open(nil, c); return err },
		},
	}
}

func TestEveryCutAndEveryFlippedBitIsRefused(t *testing.T) {
	for name, c := range newExchange(t).takers() {
		if err := c.take(c.command); err != nil {
			t.Fatalf("%s as it was: %v", name, err)
		}
		for i := range c.command {
			if err := c.take(c.command[:i]); !refused(err, BadName) && !refused(err, BadSize) && !refused(err, BadBox) {
				t.Errorf("%s cut to %d bytes: error %v", name, i, err)
			}
		}
		if err := c.take(append(c.command[:len(c.command):len(c.command)], 0)); err == nil {
			t.Errorf("%s with a byte more is taken", name)
		}
		for i := range 8 * len(c.command) {
			flipped := edit(c.command, func(c []byte) { c[i/8] ^= 1 << (i % 8) })
			if err := c.take(flipped); err == nil {
				t.Errorf("%s with bit %d of byte %d flipped is taken", name, i%8, i/8)
			}
		}
	}
}

func TestEveryCommandOutOfPlaceIsRefused(t *testing.T) {
	takers := newExchange(t).takers()
	for due, taker := range takers {
		for name, c := range takers {
			if err := taker.take(c.command); name != due && !refused(err, BadName) {
				t.Errorf("%s for %s: error %v; want a refusal of the name", name, due, err)
			}
		}
		for _, command := range []string{"", "\x00", "\xff", "\x05HELL", "\x05hello", "\x04PING\x00\x00", "\x09SUBSCRIBE"} {
			if err := taker.take([]byte(command)); !refused(err, BadName) {
				t.Errorf("%q for %s: error %v; want a refusal of the name", command, due, err)
			}
		}
	}
}

func TestC026MalformedHello(t *testing.T) {
	e := newExchange(t)
	sealed := func(text []byte) []byte { // as a client does it, but of another text
		return sealShort(bytes.Clone(e.hello[:112]), "CurveZMQHELLO---", 1, text, e.atWelcome.server)
	}
	key := func(text string) []byte {
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return edit(e.hello, func(c []byte) { copy(c[80:], raw) })
	}
	for _, c := range []struct {
		name    string
		command []byte
		reason  Reason
	}{
		{"199 bytes", e.hello[:199], BadSize},
		{"201 bytes", append(bytes.Clone(e.hello), 0), BadSize},
		{"version 2.0", edit(e.hello, func(c []byte) { c[6] = 2 }), BadVersion},
		{"version 1.1", edit(e.hello, func(c []byte) { c[7] = 1 }), BadVersion},
		{"padding", edit(e.hello, func(c []byte) { c[79] = 1 }), BadPadding},
		{"random box", edit(e.hello, func(c []byte) { copy(c[120:], bytes.Repeat([]byte{7}, 80)) }), BadBox},
		{"another nonce", edit(e.hello, func(c []byte) { c[119]++ }), BadBox},
		{"not zeros in the box", sealed(bytes.Repeat([]byte{1}, 64)), BadBox},
		{"all-zero key", key(lowOrder[0]), BadKey},
		{"low-order key", key(lowOrder[2]), BadKey},
		{"key above 2^255-19", key(lowOrder[6]), BadKey},
		{"key with the bit that X25519 ignores", edit(e.hello, func(c []byte) { c[111] |= 0x80 }), BadKey},
		{"client sends ERROR", Reject("400"), BadName},
		{"INITIATE before HELLO", e.initiate, BadName},
	} {
		h := e.server.Handshake()
		welcome, err := h.Hello(c.command)
		if !refused(err, c.reason) || welcome != nil {
			t.Errorf("%s: %d bytes, error %v; want a refusal of the %s", c.name, len(welcome), err, c.reason)
		}
		if _, err := h.Hello(e.hello); !refused(err, BadOrder) {
			t.Errorf("%s: then a good HELLO: error %v", c.name, err)
		}
	}
}

func TestC026MalformedInitiate(t *testing.T) {
	e := newExchange(t)
	public, _ := newPair(t)

	// A client that says it has this key, and seals this vouch with that one.
	forge := func(key PublicKey, vouch []byte, vouchKey *[keySize]byte, metadata string) []byte {
		plain := sealLong(bytes.Clone(key[:]), "VOUCH---", vouch, vouchKey)
		command := append([]byte(initiate), e.atVouch.cookie[:]...)
		return sealShort(command, "CurveZMQINITIATE", 2, append(plain, metadata...), e.atReady.shared)
	}
	own, vouchKey := e.client.public, e.atReady.vouch
	vouch := append(bytes.Clone(e.atReady.public[:]), e.client.server[:]...)
	if h := e.atInitiate; true {
		if _, _, err := h.Initiate(forge(own, vouch, vouchKey, "")); err != nil {
			t.Fatalf("a good one: %v", err)
		}
	}
	count := func(count uint64) []byte {
		c := e.atVouch
		c.count = count - 1
		command, err := c.Initiate(dealer)
		if err != nil {
			t.Fatal(err)
		}
		return command
	}
	for _, c := range []struct {
		name    string
		command []byte
		reason  Reason
	}{
		{"256 bytes", e.initiate[:256], BadSize},
		{"4,097 bytes", append(bytes.Clone(e.initiate), make([]byte, 4097-len(e.initiate))...), BadSize},
		{"random box", edit(e.initiate, func(c []byte) { copy(c[113:], bytes.Repeat([]byte{7}, 144)) }), BadBox},
		{"changed cookie", edit(e.initiate, func(c []byte) { c[9+16+40] ^= 1 }), BadCookie},
		{"HELLO's nonce again", count(1), BadNonce},
		{"a nonce skipped", count(3), BadNonce},
		{"nonce 0", count(0), BadNonce},
		{"vouch for another transient key", forge(own, append(bytes.Clone(public[:]), e.client.server[:]...), vouchKey, ""), BadVouch},
		{"vouch for another server", forge(own, append(bytes.Clone(e.atReady.public[:]), public[:]...), vouchKey, ""), BadVouch},
		{"vouch with our own transient key", forge(own, vouch, e.atReady.shared, ""), BadVouch},
		{"key of somebody else", forge(public, vouch, vouchKey, ""), BadVouch},
		{"all-zero key", forge(PublicKey{}, vouch, vouchKey, ""), BadKey},
		{"metadata cut short", forge(own, vouch, vouchKey, "\x0bSocket-Type\x00\x00\x00\x06DEAL"), BadMetadata},
		{"metadata twice", forge(own, vouch, vouchKey, "\x01a\x00\x00\x00\x00\x01A\x00\x00\x00\x00"), BadMetadata},
		{"client sends ERROR", Reject("400"), BadName},
		{"HELLO again", e.hello, BadName},
		{"MESSAGE before READY", e.takers()["MESSAGE"].command, BadName},
	} {
		h := e.atInitiate
		if key, _, err := h.Initiate(c.command); !refused(err, c.reason) || key != (PublicKey{}) {
			t.Errorf("%s: key %v, error %v; want a refusal of the %s", c.name, key, err, c.reason)
		}
		if ready, session, err := h.Ready(nil); !refused(err, BadOrder) || ready != nil || session != nil {
			t.Errorf("%s: READY all the same", c.name)
		}
	}
}

// A recorded connection is played again to the same server, while its cookie is
// good: HELLO is taken, INITIATE and so all messages are not.
func TestC026CookieOfAnotherConnection(t *testing.T) {
	e := newExchange(t)
	again := e.server.Handshake()
	if _, err := again.Hello(e.hello); err != nil {
		t.Fatal(err)
	}
	if _, _, err := again.Initiate(e.initiate); !refused(err, BadCookie) {
		t.Errorf("INITIATE played again: error %v; want a refusal of the cookie", err)
	}

	// Our own connection, another's cookie, sealed properly.
	other := newExchange(t)
	other.atVouch.cookie = e.atVouch.cookie
	stolen, err := other.atVouch.Initiate(dealer)
	if err != nil {
		t.Fatal(err)
	}
	other.atInitiate.server = e.server
	if _, _, err := other.atInitiate.Initiate(stolen); !refused(err, BadCookie) {
		t.Errorf("INITIATE with another's cookie: error %v; want a refusal of the cookie", err)
	}
	// With the name of our own cookie on it.
	forged := edit(stolen, func(c []byte) { copy(c[9:25], other.atInitiate.cookie[:]) })
	other = newExchange(t)
	if _, _, err := other.atInitiate.Initiate(forged); !refused(err, BadCookie) {
		t.Errorf("INITIATE with a renamed cookie: error %v; want a refusal of the cookie", err)
	}
}

func TestC026CookieExpires(t *testing.T) {
	for age, good := range map[time.Duration]bool{
		29 * time.Second:  true,
		61 * time.Second:  false,
		121 * time.Second: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newExchange(t)
			h := e.atInitiate
			time.Sleep(age)
			if _, _, err := h.Initiate(e.initiate); good != (err == nil) || !good && !refused(err, BadCookie) {
				t.Errorf("INITIATE after %v: error %v", age, err)
			}
		})
	}
}

func TestC026TenThousandHellosCostLittle(t *testing.T) {
	const hellos, limit = 10_000, 2 << 20 // the case allows 20 MiB to all of the server
	e := newExchange(t)
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	waiting := make([]*ServerHandshake, hellos)
	for i := range waiting {
		waiting[i] = e.server.Handshake()
		if _, err := waiting[i].Hello(e.hello); err != nil {
			t.Fatal(err)
		}
	}
	if after := heap(); after > before+limit {
		t.Errorf("%d HELLOs hold %d KiB", hellos, (after-before)>>10)
	}
	runtime.KeepAlive(waiting)
}

func TestC027BadMessages(t *testing.T) {
	e := newExchange(t)
	sender := e.clientSession
	var commands [3][]byte
	for i := range commands {
		var err error
		if commands[i], err = sender.Seal(nil, 0, []byte("result")); err != nil {
			t.Fatal(err)
		}
	}
	backward := e.serverSession // its own message, sent back to it
	mirrored, err := backward.Seal(nil, 0, []byte("result"))
	if err != nil {
		t.Fatal(err)
	}
	flags := func(flags byte) []byte {
		s := e.clientSession
		command := bytes.Clone(commands[0])
		s.sealing.seal((*[16]byte)(command[16:]), command[32:], 3, flags, []byte("result"))
		return command
	}
	for _, c := range []struct {
		name     string
		commands [][]byte // all but the last are good
		reason   Reason
	}{
		{"a message twice", [][]byte{commands[0], commands[0]}, BadNonce},
		{"a message again later", [][]byte{commands[0], commands[1], commands[0]}, BadNonce},
		{"the next before this", [][]byte{commands[1]}, BadNonce},
		{"one left out", [][]byte{commands[0], commands[2]}, BadNonce},
		{"a bit of the box flipped", [][]byte{edit(commands[0], func(c []byte) { c[len(c)-1] ^= 1 })}, BadBox},
		{"a bit of the sum flipped", [][]byte{edit(commands[0], func(c []byte) { c[16] ^= 1 })}, BadBox},
		{"the right nonce on another box", [][]byte{commands[0], edit(commands[2], func(c []byte) { c[15] = commands[1][15] })}, BadBox},
		{"a byte cut", [][]byte{commands[0][:len(commands[0])-1]}, BadBox},
		{"a byte more", [][]byte{append(bytes.Clone(commands[0]), 0)}, BadBox},
		{"32 bytes", [][]byte{commands[0][:32]}, BadSize},
		{"our own message", [][]byte{edit(mirrored, func(c []byte) { c[15] = 3 })}, BadBox},
		{"MORE and COMMAND", [][]byte{flags(3)}, BadFlags},
		{"reserved flags", [][]byte{flags(0x80)}, BadFlags},
		{"plain text", [][]byte{[]byte("muster.v1.Heartbeat")}, BadName},
		{"nothing", [][]byte{{}}, BadName},
		{"READY again", [][]byte{e.ready}, BadName},
	} {
		s := e.serverSession
		last := len(c.commands) - 1
		for _, command := range c.commands[:last] {
			if _, _, err := s.Open(nil, command); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		if _, payload, err := s.Open([]byte("x"), c.commands[last]); !refused(err, c.reason) || string(payload) != "x" {
			t.Errorf("%s: %q, error %v; want a refusal of the %s", c.name, payload, err, c.reason)
		}
		for _, command := range commands { // good or not: it is over
			if _, _, err := s.Open(nil, command); !refused(err, BadOrder) {
				t.Errorf("%s: then a message is opened, error %v", c.name, err)
			}
		}
	}
}
