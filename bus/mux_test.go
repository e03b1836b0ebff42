package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestAnswersToWhatCallbacksReturn(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		nack   *musterv1.Nack
		closes bool
	}{
		{"nothing", nil, nil, false},
		{"a nack", &bus.NackError{Reason: musterv1.Nack_RETRY, Detail: "later", Field: "a.b"},
			&musterv1.Nack{Reason: musterv1.Nack_RETRY, Detail: "later", Field: "a.b"}, false},
		{"a wrapped nack", fmt.Errorf("agent: %w", &bus.NackError{Reason: musterv1.Nack_NOT_REGISTERED}),
			&musterv1.Nack{Reason: musterv1.Nack_NOT_REGISTERED}, false},
		{"a refusal", &bus.NackError{Reason: musterv1.Nack_REFUSED, Detail: "no"},
			&musterv1.Nack{Reason: musterv1.Nack_REFUSED, Detail: "no"}, true},
		{"a nack and hang up", errors.Join(&bus.NackError{Reason: musterv1.Nack_INVALID, Detail: "bad"}, bus.ErrHangUp),
			&musterv1.Nack{Reason: musterv1.Nack_INVALID, Detail: "bad"}, true},
		{"hang up", fmt.Errorf("enough: %w", bus.ErrHangUp), nil, true},
		{"any other", errors.New("disk full"), &musterv1.Nack{Reason: musterv1.Nack_INVALID, Detail: "disk full"}, false},
		{"not UTF-8", errors.New("bad \xff"), &musterv1.Nack{Reason: musterv1.Nack_INVALID, Detail: "bad ?"}, false},
		{"too long", errors.New(strings.Repeat("x", 5000)), &musterv1.Nack{Reason: musterv1.Nack_INVALID, Detail: strings.Repeat("x", 1024)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := buildStation(t, bus.Config{})
				bus.Handle(s.mux, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Busy) error {
					p.Send(&musterv1.TargetAck{}) // queued before the end: must arrive
					return c.err
				})
				s.serve(newNet(s))
				r := s.enter()
				f, err := bus.Seal(&musterv1.Envelope{Id: "q"}, &musterv1.Busy{})
				if err != nil {
					t.Fatal(err)
				}
				r.send(wire(t, f))
				r.receive(&musterv1.TargetAck{})
				if c.nack != nil {
					var n musterv1.Nack
					env := r.receive(&n)
					c.nack.Type = "muster.v1.Busy"
					if !proto.Equal(&n, c.nack) || env.InReplyTo != "q" {
						t.Errorf("nack %v to %q, want %v", &n, env.InReplyTo, c.nack)
					}
				}
				if !c.closes {
					r.served()
					return
				}
				r.closed(time.Second)
				r.Close()
				synctest.Wait()
				if ends := s.ends(); len(ends) != 1 || !errors.Is(ends[0], c.err) {
					t.Errorf("down with %v, want what the callback returned", ends)
				}
			})
		})
	}
}

// wire returns the bytes that f becomes, by way of a router.
func wire(t *testing.T, f bus.Frames) []byte {
	t.Helper()
	s := newStation(t, bus.Config{})
	r := s.enter()
	synctest.Wait()
	if err := s.peers()[0].SendFrames(f); err != nil {
		t.Fatal(err)
	}
	frames, _, err := r.message()
	if err != nil {
		t.Fatal(err)
	}
	return multi(frames...)
}

func TestNoNackForANack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		r := s.enter()
		name := []byte("muster.v1.Nack")
		r.send(multi(name, nil, nil))           // nobody handles it
		r.send(multi(name, nil, []byte{8}))     // broken
		r.send(multi(name, []byte{8}, nil))     // broken envelope
		r.send(multi(name))                     // one frame
		r.send(multi(name, nil, nil, nil, nil)) // five
		r.send(sealed(t, &musterv1.Heartbeat{}))
		frames, _, err := r.message()
		if err != nil || string(frames[0]) != "muster.v1.HeartbeatAck" {
			t.Errorf("got %q %v, want nothing before the answer to the heartbeat", frames, err)
		}
		if s.refused("unknown_type") != 2 || s.refused("frames") != 2 || s.refused("envelope") != 1 {
			t.Error("not counted")
		}
	})
}

func TestUnknownTypeKeepsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		r := s.enter()
		f, err := bus.Seal(&musterv1.Envelope{Id: "q"}, &musterv1.Goodbye{})
		if err != nil {
			t.Fatal(err)
		}
		r.send(wire(t, f))
		if env := r.nacked("muster.v1.Goodbye", musterv1.Nack_UNKNOWN_TYPE); env.InReplyTo != "q" {
			t.Errorf("in reply to %q", env.InReplyTo)
		}
		for range 100 { // the number of labels does not grow
			r.send(multi([]byte(strings.Repeat("z", 100)), nil, nil))
		}
		r.served()
		if n := s.value("muster_bus_received_total", "other"); n != 101 {
			t.Errorf("%v of other types, want 101", n)
		}
		if n := s.value("muster_bus_received_total", "muster.v1.Heartbeat"); n != 1 {
			t.Errorf("%v heartbeats counted", n)
		}
		if n := s.value("muster_bus_sent_total", "muster.v1.HeartbeatAck"); n != 1 {
			t.Errorf("%v acks counted", n)
		}
		if n := s.value("muster_bus_handshake_seconds", ""); n != 1 {
			t.Errorf("%v handshakes", n)
		}
	})
}

func TestEnvelopeIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{})
		want := &musterv1.Envelope{Id: "i", InReplyTo: "r", Traceparent: "00-1-2-01", Opaque: []byte{0, 255}}
		got := make(chan *musterv1.Envelope, 2)
		bus.Handle(s.mux, func(_ *bus.Peer, env *musterv1.Envelope, _ *musterv1.Busy) error {
			got <- env
			return nil
		})
		s.serve(newNet(s))
		r := s.enter()
		f, err := bus.Seal(want, &musterv1.Busy{})
		if err != nil {
			t.Fatal(err)
		}
		r.send(wire(t, f))
		r.send(sealed(t, &musterv1.Busy{}))
		if env := <-got; !proto.Equal(env, want) {
			t.Errorf("envelope %v, want %v", env, want)
		}
		if env := <-got; env == nil {
			t.Error("no envelope, want an empty one")
		}
	})
}

func TestSecondCallbackPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	mux := bus.NewMux()
	for range 2 {
		bus.Handle(mux, func(*bus.Peer, *musterv1.Envelope, *musterv1.Busy) error { return nil })
	}
}

// What a callback keeps is its own: the next message does not change it.
func TestCallbacksMayKeepMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		r := s.enter()
		for i := range 100 {
			r.send(sealed(t, &musterv1.OutputChunk{CommandId: fmt.Sprint(i), Data: []byte(fmt.Sprint(i))}))
		}
		r.served()
		for i, m := range s.heard[:100] {
			c := m.(*musterv1.OutputChunk)
			if c.CommandId != fmt.Sprint(i) || string(c.Data) != fmt.Sprint(i) {
				t.Fatalf("message %d is %v", i, c)
			}
		}
	})
}

// A body over the limit of its type is answered without being decoded, and the
// link goes on.
func TestBodyOverTheLimitOfItsType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{})
		s.mux.Limit(&musterv1.Busy{}, 1000)
		heard := 0
		bus.Handle(s.mux, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Busy) error {
			heard++
			return p.Send(&musterv1.TargetAck{})
		})
		s.serve(newNet(s))
		r := s.enter()
		for _, size := range []int{2000, 10} {
			f, err := bus.Seal(nil, &musterv1.Busy{CommandId: strings.Repeat("x", size)})
			if err != nil {
				t.Fatal(err)
			}
			r.send(wire(t, f))
		}
		var n musterv1.Nack
		if r.receive(&n); n.Reason != musterv1.Nack_INVALID || !strings.Contains(n.Detail, "limit 1000") {
			t.Errorf("got %v", &n)
		}
		r.receive(&musterv1.TargetAck{})
		if heard != 1 || s.refused("body_size") != 1 {
			t.Errorf("%d heard, %v refused", heard, s.refused("body_size"))
		}
	})
}
