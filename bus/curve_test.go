package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC007NoDowngrade(t *testing.T) {
	registration := sealed(t, &musterv1.Register{AgentId: "a"})
	for _, c := range []struct{ stream, want string }{
		{"good-null-dealer", "mechanism"},
		{"mech-PLAIN", "mechanism"},
		{"mech-curve", "mechanism"},
		{"mech-CURVE_X", "mechanism"},
		{"mech-NULL_CURVE", "mechanism"},
		{"mech-empty", "mechanism"},
		{"old-2-0", "version"},
		{"old-1-0-unversioned", "greeting"},
	} {
		t.Run(c.stream, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines lineCounter
				s := buildLoggedStation(t, &lines).guarded(everybody)
				s.serve(newNet(s))
				r := s.knock(append(stream(t, c.stream), registration...))
				answer, _ := io.ReadAll(r.in)
				if bytes.Contains(answer, []byte("READY")) || len(answer) > 64 {
					t.Errorf("answer %q, want the greeting at most", answer)
				}
				synctest.Wait()
				if len(s.heard) != 0 || len(s.peers()) != 0 || s.refused(c.want) != 1 {
					t.Errorf("heard %v, peers %v, refused as %q %v times", s.heard, s.peers(), c.want, s.refused(c.want))
				}
				if lines.count() != 1 || !strings.Contains(lines.last(), "connection refused") {
					t.Errorf("%d lines in the log, want one", lines.count())
				}
				s.enter().served()
			})
		})
	}
}

// A server that claims to be one, too, or more than it, is none.
func TestC007AsServerBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStationOf(t, bus.Config{}, true)
		for _, bit := range []byte{1, 2, 255} {
			hello := curveGreeting(t)
			hello[32] = bit
			s.knock(hello).closed(time.Second)
		}
		synctest.Wait()
		if s.refused("as_server") != 3 {
			t.Errorf("%v refused", s.refused("as_server"))
		}
	})
}

func TestC007NoKeyNoServer(t *testing.T) {
	public, secret := newKeys(t)
	for name, sec := range map[string]bus.Security{
		"no key":       bus.CurveServer(bus.SecretKey{}, everybody),
		"nobody asked": bus.CurveServer(secret, nil),
		"of a client":  bus.CurveClient(secret, public),
	} {
		ln, err := bus.Listen("tcp://127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := bus.NewRouter(bus.Config{}, bus.NewMux()).Serve(t.Context(), ln, sec); err == nil {
			t.Errorf("%s: a router serves", name)
		}
	}
	for name, sec := range map[string]bus.Security{
		"no key":        bus.CurveClient(bus.SecretKey{}, public),
		"no server key": bus.CurveClient(secret, bus.PublicKey{}),
		"of a server":   bus.CurveServer(secret, everybody),
	} {
		d := bus.NewDealer(bus.Config{}, bus.NewMux(), []string{"tcp://127.0.0.1:1"}, sec, nil)
		if err := d.Run(t.Context()); err == nil {
			t.Errorf("%s: a dealer dials", name)
		}
	}
}

// The room of a large message is given back when it is written.
func TestCurveQueueRunsDry(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		r := s.enter()
		synctest.Wait()
		p := s.peers()[0]
		for _, size := range []int{10, 16 << 10, 1 << 20, 8<<20 - 100, 8<<20 - 100} {
			if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, size)}); err != nil {
				t.Fatal(err)
			}
			var got musterv1.OutputChunk
			if r.receive(&got); len(got.Data) != size {
				t.Errorf("%d bytes arrived as %d", size, len(got.Data))
			}
			synctest.Wait()
			if n, b := s.value("muster_bus_queue_messages", ""), s.value("muster_bus_queue_bytes", ""); n != 0 || b != 0 {
				t.Errorf("%v messages, %v bytes are still queued", n, b)
			}
		}
	})
}

// NULL and CURVE side by side on one router.
func TestC007BothListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStationOf(t, bus.Config{}, true)
		sealed := s.enter()
		sealed.served()
		plain := &station{t: t}
		net := newNet(plain)
		run(t, func(ctx context.Context) error { return s.router.Serve(ctx, net, bus.Null()) })
		open := plain.enter()
		open.served()
		sealed.served()
		synctest.Wait()
		if p := s.peers(); p[0].Key() == "" || p[1].Key() != "" {
			t.Errorf("keys %q and %q, want one and none", p[0].Key(), p[1].Key())
		}
	})
}

func TestC026MalformedHandshake(t *testing.T) {
	initiate := func(h handshake) []byte { return frame(4, h.initiate()) }
	for _, c := range []struct {
		name string
		send func(h handshake) []byte
		want string
	}{
		{"HELLO one byte short", func(h handshake) []byte { return frame(4, h.hello()[:199]) }, "curve_size"},
		{"HELLO one byte long", func(h handshake) []byte { return frame(4, append(h.hello(), 0)) }, "curve_size"},
		{"HELLO of version 2.0", func(h handshake) []byte { b := h.hello(); b[6] = 2; return frame(4, b) }, "curve_version"},
		{"HELLO with a bad box", func(h handshake) []byte { b := h.hello(); b[199] ^= 1; return frame(4, b) }, "server_key"},
		{"HELLO with the zero key", func(h handshake) []byte { b := h.hello(); clear(b[80:112]); return frame(4, b) }, "curve_key"},
		{"HELLO with padding", func(h handshake) []byte { b := h.hello(); b[50] = 1; return frame(4, b) }, "curve_padding"},
		{"HELLO as a data frame", func(h handshake) []byte { return frame(0, h.hello()) }, "handshake_frame"},
		{"HELLO twice", func(h handshake) []byte { h.send(frame(4, h.hello())); return command("HELLO", make([]byte, 194)...) }, "handshake_command"},
		{"INITIATE before HELLO", func(h handshake) []byte { return command("INITIATE", make([]byte, 248)...) }, "handshake_command"},
		{"INITIATE short", func(h handshake) []byte { return frame(4, h.initiate()[:256]) }, "curve_size"},
		{"INITIATE with a bad cookie", func(h handshake) []byte { b := h.initiate(); b[50] ^= 1; return frame(4, b) }, "curve_cookie"},
		{"INITIATE with a bad box", func(h handshake) []byte { b := h.initiate(); b[200] ^= 1; return frame(4, b) }, "curve_box"},
		{"INITIATE over 4 KiB", func(h handshake) []byte { return frame(4, append(h.initiate(), make([]byte, 4<<10)...)) }, "handshake_size"},
		{"READY of a NULL peer", func(h handshake) []byte { return command("READY", property("Socket-Type", "DEALER")...) }, "handshake_command"},
		{"ERROR", func(h handshake) []byte { return command("ERROR", 3, 'b', 'a', 'd') }, "handshake_error"},
		{"MESSAGE before READY", func(h handshake) []byte { h.send(frame(4, h.hello())); return frame(0, []byte("\x07MESSAGE")) }, "handshake_frame"},
		{"INITIATE twice", func(h handshake) []byte { b := initiate(h); return append(b, b...) }, "curve_clear"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTCPCurveStation(t, bus.Config{}, everybody)
			good := s.enter()
			_, secret := newKeys(t)
			h := s.knockSealed(secret)
			h.send(c.send(h))
			h.SetReadDeadline(time.Now().Add(2 * time.Second))
			rest, err := io.ReadAll(h.in)
			if err != nil && strings.Contains(err.Error(), "timeout") {
				t.Error("still open")
			}
			if bytes.Contains(rest, []byte("READY")) != (c.want == "curve_clear") || bytes.Contains(rest, []byte("ERROR")) {
				t.Errorf("answered %q", rest)
			}
			until(t, "counted as "+c.want, func() bool { return s.refused(c.want) == 1 })
			good.served()
			if n := s.heardOf(&musterv1.Heartbeat{}); n != 1 {
				t.Errorf("heard %d heartbeats", n)
			}
		})
	}
}

// An INITIATE is good on its own connection only, and not for ever.
func TestC026Cookies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStationOf(t, bus.Config{Handshake: 10 * time.Minute}, true)
		_, secret := newKeys(t)
		one, other := s.knockSealed(secret), s.knockSealed(secret)
		foreign := one.initiate()
		other.initiate()
		other.send(frame(4, foreign))
		other.closed(time.Second)
		old := s.knockSealed(secret)
		late := old.initiate()
		one.send(frame(4, foreign))
		one.finish().served()
		time.Sleep(2 * time.Minute)
		old.send(frame(4, late))
		old.closed(time.Second)
		synctest.Wait()
		if s.refused("curve_cookie") != 2 || len(s.peers()) != 1 {
			t.Errorf("%v cookies refused, %d peers", s.refused("curve_cookie"), len(s.peers()))
		}
	})
}

// Peers that stop after HELLO cost little, however many come.
func TestC026ManyHellos(t *testing.T) {
	s := newTCPCurveStation(t, bus.Config{MaxHandshaking: 100, Handshake: time.Second}, everybody)
	good := s.enter()
	hello := append(curveGreeting(t), frame(4, s.knockSealed(secretOf(t)).hello())...)
	before := held()
	for range 600 {
		nc, err := s.dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(hello)
		defer nc.Close()
	}
	if grown := held() - before; grown > 20<<20 {
		t.Errorf("took %d KiB", grown>>10)
	}
	good.served()
}

func secretOf(t *testing.T) bus.SecretKey {
	_, secret := newKeys(t)
	return secret
}

// A relay may do what it likes with what it cannot read: the link ends, without
// a word, and nothing is heard twice.
func TestC027BrokenMessages(t *testing.T) {
	const body = 403 // of the chunks that are sent
	// last is the last MESSAGE of an encoded chunk, from its name on.
	last := func(b []byte) []byte { return b[len(b)-curve.Overhead-body:] }
	resize := func(b []byte, n int) []byte { // gives the last MESSAGE another size
		head := b[:len(b)-9-curve.Overhead-body]
		return append(bytes.Clone(head), frame(0, append(last(b), 0)[:n])...)
	}
	for _, c := range []struct {
		name  string
		twist func(a, b []byte) []byte
		want  string
		heard int // of two
	}{
		{"as they were", func(a, b []byte) []byte { return append(a, b...) }, "", 2},
		{"the first twice", func(a, b []byte) []byte { return append(a, a...) }, "curve_nonce", 1},
		{"the second first", func(a, b []byte) []byte { return append(b, a...) }, "curve_nonce", 0},
		{"the first left out", func(a, b []byte) []byte { return b }, "curve_nonce", 0},
		{"the first again at the end", func(a, b []byte) []byte { return append(append(bytes.Clone(a), b...), a...) }, "curve_nonce", 2},
		{"a bit of the box", func(a, b []byte) []byte { last(b)[curve.Overhead+7] ^= 1; return append(a, b...) }, "curve_box", 1},
		{"a bit of the flags", func(a, b []byte) []byte { last(b)[32] ^= 1; return append(a, b...) }, "curve_box", 1},
		{"a bit of the sum", func(a, b []byte) []byte { last(b)[16] ^= 0x80; return append(a, b...) }, "curve_box", 1},
		{"a bit of the nonce", func(a, b []byte) []byte { last(b)[8] ^= 1; return append(a, b...) }, "curve_nonce", 1},
		{"a bit of the name", func(a, b []byte) []byte { last(b)[3] ^= 1; return append(a, b...) }, "curve_name", 1},
		{"a byte short", func(a, b []byte) []byte { return append(a, resize(b, curve.Overhead+body-1)...) }, "curve_box", 1},
		{"a byte long", func(a, b []byte) []byte { return append(a, resize(b, curve.Overhead+body+1)...) }, "curve_box", 1},
		{"without its flags", func(a, b []byte) []byte { return append(a, resize(b, curve.Overhead-1)...) }, "curve_size", 1},
		{"empty", func(a, b []byte) []byte { return append(a, resize(b, 0)...) }, "curve_size", 1},
		{"MORE outside", func(a, b []byte) []byte { b[0] |= 1; return append(a, b...) }, "curve_clear", 1},
		{"as a command", func(a, b []byte) []byte { b[0] |= 4; return append(a, b...) }, "curve_clear", 1},
		{"reserved bits", func(a, b []byte) []byte { b[0] |= 0x80; return append(a, b...) }, "flags", 1},
		{"in the clear", func(a, b []byte) []byte { return append(a, sealed(t, &musterv1.Heartbeat{SequenceNum: 1})...) }, "curve_clear", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTCPCurveStation(t, bus.Config{}, everybody)
			good, r := s.enter(), s.enter()
			chunk := sealed(t, &musterv1.OutputChunk{Data: make([]byte, 400)})
			first, second := r.seal(chunk), r.seal(chunk)
			r.Write(c.twist(first, second))
			if c.want == "" {
				r.served()
			} else {
				r.SetReadDeadline(time.Now().Add(2 * time.Second))
				if rest, err := io.ReadAll(r.in); len(rest) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %q, %v; want to be closed without a word", rest, err)
				}
				until(t, "counted as "+c.want, func() bool { return s.refused(c.want) == 1 })
			}
			if n := s.heardOf(&musterv1.OutputChunk{}); n != c.heard || s.heardOf(&musterv1.Heartbeat{}) > 1 {
				t.Errorf("heard %d, want %d", n, c.heard)
			}
			good.served()
			s.enter().served()
		})
	}
}

// What one connection said does not work on another, nor what it was told.
func TestC027OtherConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStationOf(t, bus.Config{}, true)
		a, b := s.enter(), s.enter()
		b.Write(a.seal(sealed(t, &musterv1.Register{AgentId: "a"})))
		b.closed(time.Second)
		c := s.enter()
		c.send(sealed(t, &musterv1.Heartbeat{SequenceNum: 1}))
		size := len(sealed(t, &musterv1.HeartbeatAck{SequenceNum: 1})) + 3*curve.Overhead
		echo := make([]byte, size)
		if _, err := io.ReadFull(c.in, echo); err != nil {
			t.Fatal(err)
		}
		c.Write(echo)
		c.closed(time.Second)
		synctest.Wait()
		if s.refused("curve_nonce")+s.refused("curve_box") != 2 || s.heardOf(&musterv1.Register{}) != 0 {
			t.Errorf("not refused: %v, %v", s.refused("curve_nonce"), s.refused("curve_box"))
		}
	})
}

// A frame that nobody will look at has to be opened all the same: it may be small.
func TestC013CurveFramesAfterTheThird(t *testing.T) {
	for _, c := range []struct {
		size int
		cut  bool
	}{{4 << 10, false}, {4<<10 + 1, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStationOf(t, bus.Config{}, true)
			r := s.enter()
			r.register()
			r.send(multi([]byte("muster.v1.Heartbeat"), nil, nil, make([]byte, c.size)))
			if !c.cut {
				r.nacked("muster.v1.Heartbeat", musterv1.Nack_MALFORMED)
				r.served()
				return
			}
			r.nacked("", musterv1.Nack_MALFORMED)
			r.closed(2 * time.Second)
			if s.refused("frame_count") != 1 {
				t.Error("not counted")
			}
		})
	}
}

// A message is in one piece on the wire of each peer, and in order, whatever the
// sizes and however many send.
func TestCurveManySenders(t *testing.T) {
	s := newTCPCurveStation(t, bus.Config{}, everybody)
	r := s.enter()
	r.register()
	p := s.peers()[0]
	const senders, each = 8, 60
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for n := 0; n < each; {
				size := []int{0, 100, 5_000, 40_000}[n%4]
				err := p.Send(&musterv1.OutputChunk{CommandId: fmt.Sprint(i), Data: make([]byte, size), Offset: uint32(n)})
				switch {
				case err == nil:
					n++
				case errors.Is(err, bus.ErrQueueFull):
					select { // one value wakes one of us
					case <-p.Drained():
					case <-time.After(time.Millisecond):
					}
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	next := map[string]uint32{}
	for range senders * each {
		var chunk musterv1.OutputChunk
		r.receive(&chunk)
		if chunk.Offset != next[chunk.CommandId] {
			t.Fatalf("sender %s: %d, want %d", chunk.CommandId, chunk.Offset, next[chunk.CommandId])
		}
		next[chunk.CommandId]++
	}
	wg.Wait()
}
