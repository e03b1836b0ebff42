package bus_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// register makes the peer one that may send large messages.
func (r *raw) register() {
	r.t.Helper()
	r.send(sealed(r.t, &musterv1.Register{AgentId: "a"}))
	r.receive(&musterv1.Registered{})
}

func TestC010FrameLength(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		good := s.enter()
		limit := uint64(8 << 20)
		if s.sec != nil {
			limit += curve.Overhead
		}
		for _, size := range []uint64{1 << 63, 1<<63 - 1, 1<<64 - 1, 1 << 62, 1 << 48, 1 << 40, 1 << 34, limit + 1} {
			var raws []*raw
			for range 20 {
				r := s.enter()
				r.register()
				raws = append(raws, r)
			}
			synctest.Wait()
			grown := allocated(func() {
				for _, r := range raws {
					r.Write(binary.BigEndian.AppendUint64([]byte{2}, size))
					r.nacked("", musterv1.Nack_MALFORMED)
					r.closed(2 * time.Second)
				}
				synctest.Wait()
			})
			if grown > 1<<20 { // of eight times: less than 10 MiB in total
				t.Errorf("%#x: took %d KiB of memory", size, grown>>10)
			}
		}
		if n := s.refused("frame_size"); n != 160 {
			t.Errorf("%v counted, want 160", n)
		}
		good.served()
	})
}

// A frame is not allocated because it was announced, even when it is allowed.
func TestC010AnnouncedIsNotSpent(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		var raws []*raw
		for range 30 {
			r := s.enter()
			r.register()
			raws = append(raws, r)
		}
		grown := allocated(func() {
			for _, r := range raws {
				r.Write(binary.BigEndian.AppendUint64([]byte{2}, 8<<20))
			}
			synctest.Wait()
		})
		if grown > 1<<20 {
			t.Errorf("took %d bytes of memory for 30 headers", grown)
		}
	})
}

// message makes an OutputChunk of which the frames have size bytes together.
func sized(t *testing.T, size int) []byte {
	t.Helper()
	name := string(proto.MessageName(&musterv1.OutputChunk{}))
	body := size - len(name)
	data := body - 1 - protoVarint(body)
	b, err := proto.Marshal(&musterv1.OutputChunk{Data: make([]byte, data)})
	if err != nil || len(b) != body {
		t.Fatalf("body of %d bytes, want %d: %v", len(b), body, err)
	}
	return multi([]byte(name), nil, b)
}

// protoVarint is the length of the length of a field that fills n bytes.
func protoVarint(n int) int {
	for l := 1; ; l++ {
		if n-1-l < 1<<(7*l) {
			return l
		}
	}
}

func TestC011LimitAtTheEdge(t *testing.T) {
	chunk := &musterv1.OutputChunk{}
	for _, registered := range []bool{false, true} {
		limit := 64 << 10
		if registered {
			limit = 8 << 20
		}
		for _, c := range []struct {
			name    string
			message []byte
			reason  string
		}{
			{"limit-1", sized(t, limit-1), ""},
			{"limit", sized(t, limit), ""},
			{"limit+1", sized(t, limit+1), "message_size"},
			{"frame of limit+1", frame(0, make([]byte, limit+1)), "frame_size"},
			{"five halves", multi(slices.Repeat([][]byte{make([]byte, limit/2)}, 5)...), "message_size"},
		} {
			t.Run(fmt.Sprint(c.name, " registered ", registered), func(t *testing.T) {
				inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
					r := s.enter()
					if registered {
						r.register()
					}
					go r.send(c.message)
					if c.reason == "" {
						until(t, "the message is heard", func() bool { return s.heardOf(chunk) == 1 })
						r.served()
						return
					}
					r.nacked("", musterv1.Nack_MALFORMED)
					r.closed(2 * time.Second)
					if s.refused(c.reason) != 1 || s.heardOf(chunk) != 0 {
						t.Errorf("not refused as %q", c.reason)
					}
				})
			})
		}
	}
}

// The sender has the same limit, so that nothing is sent that must be refused.
func TestC011SenderKnowsTheLimit(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		s.enter()
		synctest.Wait()
		p := s.peers()[0]
		if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, 8<<20)}); err == nil || !strings.Contains(err.Error(), "limit 8388608") {
			t.Errorf("error %v, want one with the limit", err)
		}
		if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, 8<<20-100)}); err != nil {
			t.Error(err)
		}
	})
}

func TestC012WrongFrames(t *testing.T) {
	beat, err := proto.Marshal(&musterv1.Heartbeat{SequenceNum: 1})
	if err != nil {
		t.Fatal(err)
	}
	name := []byte("muster.v1.Heartbeat")
	for _, c := range []struct {
		name   string
		frames [][]byte
		typ    string
		reason musterv1.Nack_Reason
	}{
		{"one empty frame", [][]byte{nil}, "", musterv1.Nack_MALFORMED},
		{"only the type", [][]byte{name}, string(name), musterv1.Nack_MALFORMED},
		{"two frames", [][]byte{name, beat}, string(name), musterv1.Nack_MALFORMED},
		{"empty type", [][]byte{nil, nil, beat}, "", musterv1.Nack_UNKNOWN_TYPE},
		{"type and body swapped", [][]byte{beat, nil, name}, string(beat), musterv1.Nack_UNKNOWN_TYPE},
		{"leading empty frame, as of a REQ", [][]byte{nil, name, nil, beat}, "", musterv1.Nack_MALFORMED},
		{"five frames", [][]byte{name, nil, beat, nil, nil}, string(name), musterv1.Nack_MALFORMED},
		{"broken envelope", [][]byte{name, {0x0a, 0xff}, beat}, string(name), musterv1.Nack_MALFORMED},
		{"broken body", [][]byte{name, nil, {0x08}}, string(name), musterv1.Nack_MALFORMED},
		{"bad UTF-8", [][]byte{[]byte("muster.v1.Register"), nil, {0x0a, 2, 0xc3, 0x28}}, "muster.v1.Register", musterv1.Nack_MALFORMED},
		{"long type", [][]byte{bytes.Repeat([]byte("é"), 300), nil, nil}, strings.Repeat("é", 64), musterv1.Nack_UNKNOWN_TYPE},
		{"binary type", [][]byte{{0xff, 0xfe, 'x'}, nil, nil}, "?x", musterv1.Nack_UNKNOWN_TYPE},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
				r := s.enter()
				r.send(multi(c.frames...))
				r.nacked(c.typ, c.reason)
				if len(s.heard) != 0 {
					t.Errorf("heard %v", s.heard)
				}
				r.served()
			})
		})
	}
}

func TestC013TooManyFrames(t *testing.T) {
	register := [][]byte{[]byte("muster.v1.Register"), nil, nil}
	for _, extra := range []int{1, 2, 5, 6, 10, 10_000} {
		t.Run(fmt.Sprint(extra), func(t *testing.T) {
			inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
				r := s.enter()
				smuggled := sealed(t, &musterv1.Register{AgentId: "b"})
				go r.send(multi(append(register, slices.Repeat([][]byte{smuggled}, extra)...)...))
				if extra <= 5 {
					r.nacked("muster.v1.Register", musterv1.Nack_MALFORMED)
					r.served()
				} else {
					r.nacked("", musterv1.Nack_MALFORMED)
					r.closed(2 * time.Second)
				}
				if n := s.heardOf(&musterv1.Register{}); n != 0 {
					t.Errorf("%d registrations", n)
				}
			})
		})
	}
}

func TestC014PeerVanishesInsideAMessage(t *testing.T) {
	s := newTCPStation(t, bus.Config{})
	whole := sealed(t, &musterv1.OutputChunk{CommandId: "c", Data: make([]byte, 300)})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 25 {
				r := s.knock(slices.Concat(stream(t, "good-null-dealer"), whole[:len(whole)/2]))
				r.welcome()
				r.Conn.(*net.TCPConn).SetLinger(0)
				r.Close()
				r = s.knock(slices.Concat(stream(t, "good-null-dealer"), whole))
				r.welcome()
				r.served()
				r.Close()
			}
		})
	}
	wg.Wait()
	if n := s.heardOf(&musterv1.OutputChunk{}); n != 500 {
		t.Errorf("%d messages, want 500", n)
	}
	until(t, "all links are down", func() bool { return len(s.ends()) == 1000 })
}

func TestC015PingIsAnsweredWithItsContext(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		r := s.enter()
		beat := sealed(t, &musterv1.Heartbeat{SequenceNum: 1})
		// Also between the frames of a message.
		r.send(slices.Concat(beat[:21], command("PING", append([]byte{0, 0}, "context"...)...), beat[21:]))
		frames, isCommand, err := r.message()
		if err != nil || !isCommand || string(frames[0]) != "\x04PONGcontext" {
			t.Fatalf("%q %v %v, want PONG with the context", frames, isCommand, err)
		}
		r.receive(&musterv1.HeartbeatAck{})
		r.send(command("PING", make([]byte, 2+17)...))
		r.closed(time.Second)
		if s.refused("ping") != 1 {
			t.Error("a context over 16 bytes was taken")
		}
	})
}

func TestC015PingPromises(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		r := s.enter()
		r.send(command("PING", 0, 20)) // two seconds
		for range 5 {
			time.Sleep(1900 * time.Millisecond)
			r.served() // other traffic counts, too
		}
		start := time.Now()
		r.closed(5 * time.Second)
		if took := time.Since(start); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("closed after %v, want 2s", took)
		}
		if s.refused("silent") != 1 {
			t.Error("not counted")
		}
	})
}

// The peer does not read: the answers must not pile up, and it is cut.
func TestC015PingStorm(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		r := s.enter()
		synctest.Wait()
		if err := s.peers()[0].Send(&musterv1.OutputChunk{Data: make([]byte, 1<<20)}); err != nil {
			t.Fatal(err) // fills what the pipe holds
		}
		storm := bytes.Repeat(command("PING", 0, 0, 'x'), 10_000)
		before := held()
		for range 20 {
			r.send(storm)
		}
		if grown := held() - before; grown > 1<<20 {
			t.Errorf("took %d bytes of memory", grown)
		}
		time.Sleep(13 * time.Second)
		if len(s.ends()) != 1 || s.refused("write_stall") != 1 {
			t.Errorf("ended %v, want cut for a stall", s.ends())
		}
	})
}

func TestC016CommandsAndFlagBits(t *testing.T) {
	beat := sealed(t, &musterv1.Heartbeat{SequenceNum: 1})
	for _, c := range []struct {
		name string
		send []byte
		want string // reason to be cut; "": ignored
	}{
		{"FOO", command("FOO", 1, 2, 3), ""},
		{"JOIN", command("JOIN", 'x'), ""},
		{"SUBSCRIBE", command("SUBSCRIBE", 'x'), ""},
		{"CANCEL", command("CANCEL"), ""},
		{"PONG nobody asked for", command("PONG"), ""},
		{"READY again", command("READY"), "command_misplaced"},
		{"ERROR", command("ERROR", 1, 'x'), "command_misplaced"},
		{"INITIATE", command("INITIATE"), "command_misplaced"},
		{"clear: MORE", frame(5, []byte("\x03FOO")), "command_more"},
		{"message as a command", frame(4, beat), ""},
		{"nameless", frame(4, nil), "command_name"},
		{"empty name", frame(4, []byte{0, 1}), "command_name"},
		{"name beyond its end", frame(4, []byte{9, 'F'}), "command_name"},
		{"large", frame(4, make([]byte, 4097)), "command_size"},
		{"clear: claims 2^62 bytes", []byte{6, 0x40, 0, 0, 0, 0, 0, 0, 0}, "command_size"},
		{"clear: reserved bits", frame(0xF8, []byte("x")), "flags"},
		{"clear: one reserved bit", frame(0x08, []byte("x")), "flags"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
				r := s.enter()
				if r.crypt != nil && strings.HasPrefix(c.name, "clear: ") {
					c.want = "curve_clear"
					if c.send[0]&^7 != 0 {
						c.want = "flags"
					}
					r.Write(c.send)
				} else {
					r.send(c.send)
				}
				if c.want == "" {
					r.served()
				} else {
					r.closed(time.Second)
					synctest.Wait()
					if s.refused(c.want) != 1 {
						t.Errorf("not counted as %q", c.want)
					}
				}
				if n := s.heardOf(&musterv1.Heartbeat{}); c.want != "" && n != 0 || n > 1 {
					t.Errorf("%d heartbeats", n)
				}
			})
		})
	}
}

func TestC016CommandsInTheHandshake(t *testing.T) {
	for _, c := range []struct {
		name string
		send []byte
		want string
	}{
		{"PING", command("PING", 0, 0), "handshake_command"},
		{"HELLO", command("HELLO"), "handshake_command"},
		{"ready in small letters", command("ready", property("Socket-Type", "DEALER")...), "handshake_command"},
		{"ERROR", command("ERROR", 3, 'b', 'a', 'd'), "handshake_error"},
		{"nameless", frame(4, nil), "handshake_command"},
		{"data", frame(0, []byte("x")), "handshake_frame"},
		{"clear: MORE", frame(5, []byte("\x05READY")), "handshake_frame"},
		{"reserved bits", frame(0x84, []byte("\x05READY")), "flags"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation(t, bus.Config{})
				s.knock(append(greeting(t), c.send...)).closed(time.Second)
				synctest.Wait()
				if s.refused(c.want) != 1 {
					t.Errorf("not counted as %q", c.want)
				}
			})
		})
	}
}
