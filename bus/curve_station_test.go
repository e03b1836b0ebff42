package bus_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/curve"
)

// inBoth runs a test with a router that speaks NULL, and with one that speaks
// CURVE, on a network in memory and in fake time.
func inBoth(t *testing.T, cfg bus.Config, test func(t *testing.T, s *station)) {
	for _, sealed := range []bool{false, true} {
		name := map[bool]string{false: "NULL", true: "CURVE"}[sealed]
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newStationOf(t, cfg, sealed)) })
		})
	}
}

// everybody may come in, under the name it gives itself.
func everybody(c bus.Candidate) (string, error) { return c.Identity, nil }

// newKeys makes a key pair.
func newKeys(t testing.TB) (bus.PublicKey, bus.SecretKey) {
	t.Helper()
	public, secret, err := bus.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	return public, secret
}

// guarded makes s one with CURVE, before it serves.
func (s *station) guarded(authorize func(bus.Candidate) (string, error)) *station {
	public, secret := newKeys(s.t)
	s.server, s.sec = public, bus.CurveServer(secret, authorize)
	return s
}

// newStationOf is newStation with or without CURVE.
func newStationOf(t *testing.T, cfg bus.Config, sealed bool) *station {
	s := buildStation(t, cfg)
	if sealed {
		s.guarded(everybody)
	}
	s.serve(newNet(s))
	return s
}

// newTCPCurveStation is newTCPStation with CURVE.
func newTCPCurveStation(t *testing.T, cfg bus.Config, authorize func(bus.Candidate) (string, error)) *station {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := buildStation(t, cfg).guarded(authorize)
	s.addr, s.dial = "tcp://"+ln.Addr().String(), bus.Dial
	s.serve(ln)
	return s
}

// curveGreeting is a good greeting of a CURVE client.
func curveGreeting(t testing.TB) []byte {
	b := bytes.Clone(greeting(t))
	copy(b[12:32], append([]byte("CURVE"), make([]byte, 15)...))
	return b
}

// handshake is a raw peer on its way in by CURVE.
type handshake struct {
	*raw
	*curve.ClientHandshake
}

// knockSealed connects, greets and reads the router's greeting.
func (s *station) knockSealed(secret bus.SecretKey) handshake {
	s.t.Helper()
	h := handshake{s.knock(curveGreeting(s.t)), curve.NewClient(secret, s.server).Handshake()}
	var b [64]byte
	if _, err := io.ReadFull(h.in, b[:]); err != nil {
		s.t.Fatal(err)
	}
	if string(b[12:18]) != "CURVE\x00" || b[32] != 1 {
		s.t.Fatalf("greeting %x, want CURVE and the as-server bit", b)
	}
	return h
}

// hello gives HELLO.
func (h handshake) hello() []byte {
	h.t.Helper()
	b, err := h.Hello()
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// initiate goes on to INITIATE, which it gives.
func (h handshake) initiate() []byte {
	h.t.Helper()
	h.send(frame(4, h.hello()))
	_, welcome, err := h.frame()
	if err == nil {
		err = h.Welcome(welcome)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	b, err := h.Initiate(curve.Metadata{"Socket-Type": "DEALER"})
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// finish reads READY.
func (h handshake) finish() *raw {
	h.t.Helper()
	_, ready, err := h.frame()
	if err == nil {
		_, h.crypt, err = h.Ready(ready)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return h.raw
}

// enterSealed connects and shakes hands with CURVE.
func (s *station) enterSealed() *raw {
	s.t.Helper()
	_, secret := newKeys(s.t)
	h := s.knockSealed(secret)
	h.send(frame(4, h.initiate()))
	return h.finish()
}

// seal puts each frame in b into a MESSAGE.
func (r *raw) seal(b []byte) (sealed []byte) {
	for len(b) > 0 {
		flags, header, size := b[0], 2, uint64(b[1])
		if flags&2 != 0 {
			header, size = 9, binary.BigEndian.Uint64(b[1:])
		}
		inner := flags & 1
		if flags&4 != 0 {
			inner |= curve.Command
		}
		sealed = append(sealed, r.sealFrame(inner, b[header:uint64(header)+size])...)
		b = b[uint64(header)+size:]
	}
	return sealed
}

// sealFrame makes one MESSAGE.
func (r *raw) sealFrame(flags byte, payload []byte) []byte {
	command, err := r.crypt.Seal(nil, flags&3, payload)
	if err != nil {
		panic(err)
	}
	return frame(0, command)
}

// open opens a MESSAGE and gives the frame in it, with the flags of ZMTP.
func (r *raw) open(outer byte, command []byte) (flags byte, body []byte, err error) {
	if outer != 0 {
		return 0, nil, fmt.Errorf("frame with flags %#x, want a MESSAGE", outer)
	}
	flags, body, err = r.crypt.Open(nil, command)
	if flags == curve.Command {
		flags = 4
	}
	return flags, body, err
}
