package bus_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Callers of SendFrames and Send write themselves, give it to the reader or to a
// writer. Whoever does, messages stay whole, and in the order of their sender.
func TestManySendersKeepTheirOrder(t *testing.T) {
	t.Run("NULL", func(t *testing.T) { manySenders(t, newTCPStation(t, bus.Config{})) })
	t.Run("CURVE", func(t *testing.T) { manySenders(t, newTCPCurveStation(t, bus.Config{}, everybody)) })
}

func manySenders(t *testing.T, s *station) {
	const senders, each = 8, 500
	r := s.enter()
	r.served()
	p := s.peers()[0]
	var sending sync.WaitGroup
	defer sending.Wait()
	for sender := range uint64(senders) {
		sending.Go(func() {
			for n := range uint64(each) {
				ack := &musterv1.HeartbeatAck{SequenceNum: sender<<32 | n}
				if err := persist(p, ack, sender%2 == 0); err != nil {
					t.Errorf("message %d of sender %d: %v", n, sender, err)
					return
				}
			}
		})
	}
	next := map[uint64]uint64{}
	for n := range senders * each {
		if n%10 == 0 {
			r.send(sealed(t, &musterv1.Register{})) // makes the reader write, too
		}
		var ack musterv1.HeartbeatAck
		r.receive(&ack)
		sender, got := ack.SequenceNum>>32, ack.SequenceNum&(1<<32-1)
		if got != next[sender] {
			t.Fatalf("message %d of sender %d, want %d", got, sender, next[sender])
		}
		next[sender]++
	}
}

// persist sends m, as soon as there is room for it.
func persist(p *bus.Peer, m *musterv1.HeartbeatAck, frames bool) error {
	send := func() error { return p.Send(m) }
	if frames {
		f, err := bus.Seal(nil, m)
		if err != nil {
			return err
		}
		send = func() error { return p.SendFrames(f) }
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := send()
		if !errors.Is(err, bus.ErrQueueFull) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-p.Drained():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// What the kernel does not take of a message at once is written when the peer reads.
func TestSendFramesToASlowReader(t *testing.T) {
	s := newTCPStation(t, bus.Config{})
	r := s.enter()
	r.served()
	p := s.peers()[0]
	f, err := bus.Seal(nil, &musterv1.OutputChunk{Data: make([]byte, 4<<10)})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for err == nil {
		if err = p.SendFrames(f); err == nil {
			sent++
		}
	}
	if !errors.Is(err, bus.ErrQueueFull) {
		t.Fatalf("error %v, want ErrQueueFull", err)
	}
	for range sent {
		var m musterv1.OutputChunk
		if r.receive(&m); len(m.Data) != 4<<10 {
			t.Fatalf("%d bytes, want 4 KiB", len(m.Data))
		}
	}
	r.served()
}
