package bus_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC020PeerThatNeverReads(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		stuck := s.enter()
		stuck.register()
		synctest.Wait()
		p := s.peers()[0]
		f, err := bus.Seal(nil, &musterv1.OutputChunk{Data: make([]byte, 1<<20)})
		if err != nil {
			t.Fatal(err)
		}
		queued := 0
		for range 64 {
			if err = p.SendFrames(f); err != nil {
				break
			}
			queued++
		}
		if !errors.Is(err, bus.ErrQueueFull) || queued != 7 {
			t.Errorf("%d MiB were queued, then %v; want 7, then ErrQueueFull", queued, err)
		}
		if n, b := s.value("muster_bus_queue_messages", ""), s.value("muster_bus_queue_bytes", ""); n != 7 || b < 7<<20 {
			t.Errorf("metrics say that %v messages of %v bytes are queued, want 7 of 1 MiB", n, b)
		}
		for range 10 {
			start := time.Now()
			good := s.enter()
			good.served()
			if took := time.Since(start); took > time.Second {
				t.Errorf("a good peer waited %v", took)
			}
		}
		time.Sleep(13 * time.Second)
		select {
		case <-p.Done():
		default:
			t.Fatal("not cut after 13s")
		}
		if err := p.SendFrames(f); !errors.Is(err, bus.ErrNoPeer) {
			t.Errorf("error %v, want ErrNoPeer", err)
		}
		synctest.Wait()
		if s.refused("write_stall") != 1 || s.value("muster_bus_queue_messages", "") != 0 || s.value("muster_bus_queue_bytes", "") != 0 {
			t.Errorf("stalls %v, queued %v", s.refused("write_stall"), s.value("muster_bus_queue_messages", ""))
		}
	})
}

// A peer that takes a little now and then is slow, not stuck.
func TestSlowReaderIsServed(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		r := s.enter()
		synctest.Wait()
		p := s.peers()[0]
		if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, 1<<20)}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10<<10)
		for range 50 { // more than seven minutes
			time.Sleep(9 * time.Second)
			if _, err := r.in.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.ends()) != 0 {
			t.Errorf("cut: %v", s.ends())
		}
	})
}

func TestQueueFillsAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{QueueMessages: 4})
		r := s.enter()
		synctest.Wait()
		p := s.peers()[0]
		m := &musterv1.OutputChunk{Data: make([]byte, 60<<10)}
		sent := 0
		for p.Send(m) == nil {
			sent++
			synctest.Wait() // what the pipe takes is not queued any more
		}
		if sent < 4 || sent > 6 {
			t.Fatalf("%d messages were taken, want 4 and what the pipe holds", sent)
		}
		select {
		case <-p.Drained():
			t.Fatal("drained while full")
		default:
		}
		for range sent {
			r.receive(&musterv1.OutputChunk{})
		}
		<-p.Drained()
		if err := p.Send(m); err != nil {
			t.Errorf("after the queue drained: %v", err)
		}
	})
}

// One message may be larger than the queue: else it could never be sent.
func TestMessageLargerThanTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{QueueBytes: 1000})
		r := s.enter()
		synctest.Wait()
		p := s.peers()[0]
		if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, 100<<10)}); err != nil {
			t.Fatal(err)
		}
		if err := p.Send(&musterv1.HeartbeatAck{}); !errors.Is(err, bus.ErrQueueFull) {
			t.Errorf("error %v, want ErrQueueFull", err)
		}
		r.receive(&musterv1.OutputChunk{})
	})
}

func TestMessageUnderWayHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		idle := s.enter()
		time.Sleep(time.Hour) // silence between messages has none
		idle.served()

		for _, part := range []int{1, 5, 40} {
			r := s.enter()
			beat := sealed(t, &musterv1.Register{AgentId: strings.Repeat("a", 100)})
			start := time.Now()
			r.send(beat[:part])
			go func() {
				for _, b := range beat[part : len(beat)-1] { // and some drops
					time.Sleep(29 * time.Second)
					r.send([]byte{b})
				}
			}()
			r.closed(time.Minute)
			if took := time.Since(start); took < 30*time.Second || took > 31*time.Second {
				t.Errorf("closed after %v, want 30s", took)
			}
		}
		synctest.Wait()
		if n := s.refused("message_time"); n != 3 {
			t.Errorf("%v counted, want 3", n)
		}
		time.Sleep(time.Hour)
	})
}

// Registered peers wait for the budget, in turn, and come through.
func TestReceiveBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{ReceiveBudget: 8 << 20, MaxMessage: 1 << 20, MessageTime: 10 * time.Second})
		var hold []*raw
		message := sized(t, 1<<20)
		for range 7 { // seven eighths are for registered peers
			r := s.enter()
			r.register()
			r.send(message[:40<<10])
			hold = append(hold, r)
		}
		synctest.Wait()
		waiting := s.enter()
		waiting.register()
		go waiting.send(message)
		s.enter().served() // small messages cost nothing
		time.Sleep(5 * time.Second)
		if n := s.heardOf(&musterv1.OutputChunk{}); n != 0 {
			t.Fatalf("heard %d, want the eighth to wait", n)
		}
		if s.value("muster_bus_budget_waits_total", "") != 1 {
			t.Error("the wait is not counted")
		}
		// One ends well; the one that waited gets its part.
		hold[0].send(message[40<<10:])
		synctest.Wait()
		if n := s.heardOf(&musterv1.OutputChunk{}); n != 2 {
			t.Fatalf("heard %d, want 2", n)
		}
		// The others run out of time, and give back theirs.
		time.Sleep(6 * time.Second)
		if n := s.refused("message_time"); n != 6 {
			t.Errorf("%v ran out of time, want 6", n)
		}
		waiting.served()
	})
}

// Strangers who hold all they can hold do not make registered peers wait.
func TestReceiveBudgetOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{ReceiveBudget: 4 << 20, MaxMessage: 1 << 20})
		known := s.enter()
		known.register()
		part := sized(t, 64<<10)[:10<<10]
		for range 100 {
			s.enter().send(part)
		}
		go known.send(sized(t, 1<<20))
		synctest.Wait()
		if s.heardOf(&musterv1.OutputChunk{}) != 1 {
			t.Error("a registered peer waited for strangers")
		}
	})
}

// A link that waits for the budget can be closed.
func TestCloseWhileWaitingForTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{ReceiveBudget: 1, MaxMessage: 1 << 20})
		message := sized(t, 1<<20)
		for range 2 {
			r := s.enter()
			r.register()
			go r.send(message[:100<<10])
			synctest.Wait()
		}
		s.peers()[1].Close(nil)
		select {
		case <-s.peers()[1].Done():
		case <-time.After(2 * time.Second):
			t.Error("still there after 2s")
		}
	})
}
