package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// short is a listener at the file limit while full is set.
type short struct {
	net.Listener
	full  atomic.Bool
	tries atomic.Int64
}

func (l *short) Accept() (net.Conn, error) {
	l.tries.Add(1)
	if l.full.Load() {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

func TestC029FileLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lineCounter
		s := buildLoggedStation(t, &lines)
		ln := &short{Listener: newNet(s)}
		s.serve(ln)
		good := s.enter()
		ln.full.Store(true)
		good2 := s.enter() // accept was waiting already
		for range 60 {
			time.Sleep(time.Second)
			good.served()
			good2.served()
		}
		if n := ln.tries.Load(); n > 100 {
			t.Errorf("%d tries in a minute: it spins", n)
		}
		if n := lines.count(); n < 1 || n > 75 {
			t.Errorf("%d lines in a minute", n)
		}
		ln.full.Store(false)
		start := time.Now()
		s.enter().served()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("served %v after the release", took)
		}
	})
}

// A listener that somebody else closed is an error, and ends the links.
func TestServeEndsWithItsListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{})
		net := newNet(s)
		ended := make(chan error)
		go func() { ended <- s.router.Serve(t.Context(), net, bus.Null()) }()
		s.enter().served()
		net.Close()
		if err := <-ended; err == nil {
			t.Error("no error")
		}
		if len(s.ends()) != 1 {
			t.Errorf("%d links ended, want 1", len(s.ends()))
		}
	})
}

// Whatever a peer does, nothing outlives Serve: synctest fails the test if a
// goroutine is left.
func TestNothingOutlivesServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{MaxHandshaking: 3})
		net := newNet(s)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.router.Serve(ctx, net, bus.Null()) }()

		s.enter().served()                                               // idle
		s.enter().send(sealed(t, &musterv1.Register{AgentId: "a"})[:20]) // in a message
		stuck := s.enter()                                               // reads nothing
		closing := s.enter()                                             // does not close
		synctest.Wait()
		for range 20 {
			s.peers()[2].Send(&musterv1.OutputChunk{Data: make([]byte, 1<<20)})
		}
		s.peers()[3].Close(errors.New("enough"))
		for range 3 {
			s.knock(nil) // all places for handshakes
		}
		go s.dial(ctx, "") // waits for a place
		synctest.Wait()
		start := time.Now()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("error %v, want none", err)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
		if n := len(s.ends()); n != 4 {
			t.Errorf("%d links ended, want 4", n)
		}
		for _, p := range s.peers() {
			if err := p.Send(&musterv1.Heartbeat{}); !errors.Is(err, bus.ErrNoPeer) {
				t.Errorf("send after the end: %v, want ErrNoPeer", err)
			}
			p.Close(nil) // harmless
		}
		stuck.Close()
		closing.Close()
	})
}

func TestCloseFlushesFirst(t *testing.T) {
	for _, c := range []struct {
		name string
		addr bool
	}{{"memory", false}, {"tcp", true}} {
		t.Run(c.name, func(t *testing.T) {
			var s *station
			if c.addr {
				s = newTCPStation(t, bus.Config{})
			} else {
				s = newStation(t, bus.Config{})
			}
			r := s.enter()
			until(t, "the link is up", func() bool { return len(s.peers()) == 1 })
			p := s.peers()[0]
			// Bytes that nobody will read must not cost the peer what was sent.
			r.send(sealed(t, &musterv1.OutputChunk{Data: make([]byte, 30<<10)}))
			for i := range 100 {
				if err := p.Send(&musterv1.HeartbeatAck{SequenceNum: uint64(i)}); err != nil {
					t.Fatal(err)
				}
			}
			enough := errors.New("enough")
			p.Close(enough)
			if err := p.Send(&musterv1.HeartbeatAck{}); !errors.Is(err, bus.ErrNoPeer) {
				t.Errorf("send after Close: %v, want ErrNoPeer", err)
			}
			r.send(sealed(t, &musterv1.OutputChunk{Data: make([]byte, 30<<10)}))
			for i := range 100 {
				var ack musterv1.HeartbeatAck
				if r.receive(&ack); ack.SequenceNum != uint64(i) {
					t.Fatalf("message %d came, want %d", ack.SequenceNum, i)
				}
			}
			r.closed(time.Second)
			r.Close()
			<-p.Done()
			until(t, "down is called", func() bool { return len(s.ends()) == 1 })
			if err := s.ends()[0]; err != enough {
				t.Errorf("down with %v, want what Close got", err)
			}
		})
	}
}

func TestClosePeerThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		s.enter()
		synctest.Wait()
		p := s.peers()[0]
		if err := p.Send(&musterv1.OutputChunk{Data: make([]byte, 4<<20)}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		p.Close(nil)
		<-p.Done()
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v, want 1s", took)
		}
	})
}

func TestUpAndDownFrameTheMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{})
		var story []string
		s.mux.Up = func(p *bus.Peer) {
			p.Attach(&story)
			story = append(story, "up")
		}
		bus.Handle(s.mux, func(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Busy) error {
			*p.Attached().(*[]string) = append(story, "busy "+m.CommandId)
			return nil
		})
		s.mux.Down = func(p *bus.Peer, err error) {
			select {
			case <-p.Done():
			default:
				t.Error("down before done")
			}
			story = append(story, fmt.Sprint("down ", err))
		}
		s.serve(newNet(s))
		r := s.knock(append(stream(t, "good-null-dealer"), append(sealed(t, &musterv1.Busy{CommandId: "1"}), sealed(t, &musterv1.Busy{CommandId: "2"})...)...))
		r.welcome()
		synctest.Wait()
		r.Close()
		synctest.Wait()
		if got := fmt.Sprint(story); got != "[up busy 1 busy 2 down EOF]" {
			t.Errorf("story %v", got)
		}
	})
}

func TestOneRouterOnSeveralListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		s.enter().served()
		s.serve(newNet(s))
		s.enter().served()
		synctest.Wait()
		if n := s.value("muster_bus_peers", ""); n != 2 {
			t.Errorf("%v peers, want 2", n)
		}
	})
}
