package agentd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// inSession runs fn beside a session in a bubble.
func inSession(t *testing.T, fn func(s *session, d *fakeDealer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSession(func(Link) *musterv1.Register { return &musterv1.Register{AgentId: "a"} }, testLog(t))
		d := &fakeDealer{}
		s.dealer = d
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		fn(s, d)
		cancel()
		wg.Wait()
	})
}

func registered(interval time.Duration) *musterv1.Registered {
	return &musterv1.Registered{Capabilities: remembers, HeartbeatInterval: durationpb.New(interval), ReconnectWindow: durationpb.New(5 * time.Second)}
}

func TestSessionRegistersThenBeats(t *testing.T) {
	inSession(t, func(s *session, d *fakeDealer) {
		link := newFakeLink(100)
		s.up(link)
		s.onRegistered(link, registered(10*time.Second))
		if d.window != 5*time.Second {
			t.Errorf("reconnect window %v", d.window)
		}
		for range 10 {
			time.Sleep(10 * time.Second)
			s.hear(link)
		}
		sent := link.take()
		if r, ok := sent[0].(*musterv1.Register); !ok || r.SequenceNum != 1 {
			t.Fatalf("first %v", sent[0])
		}
		if n := len(sent) - 1; n < 9 || n > 11 {
			t.Errorf("%d heartbeats in 100 s", n)
		}
		for i, m := range sent[1:] {
			if b, ok := m.(*musterv1.Heartbeat); !ok || b.SequenceNum != uint64(i+2) {
				t.Errorf("message %d is %v", i+1, m)
			}
		}
		if link.cause() != nil {
			t.Errorf("closed: %v", link.cause())
		}
	})
}

func TestSessionGivesUpASilentLink(t *testing.T) {
	for name, answer := range map[string]bool{"registered": true, "not registered": false} {
		t.Run(name, func(t *testing.T) {
			inSession(t, func(s *session, _ *fakeDealer) {
				link := newFakeLink(100)
				began := time.Now()
				s.up(link)
				if answer {
					s.onRegistered(link, registered(10*time.Second))
				}
				<-link.Done()
				if took := time.Since(began); !errors.Is(link.cause(), errSilent) || took != 30*time.Second {
					t.Errorf("closed after %v: %v", took, link.cause())
				}
				// The next link goes on with the sequence.
				sent := link.take()
				next := newFakeLink(100)
				s.up(next)
				if r := next.take()[0].(*musterv1.Register); r.SequenceNum != uint64(len(sent)+1) {
					t.Errorf("sequence %d after %d messages", r.SequenceNum, len(sent))
				}
			})
		})
	}
}

func TestSessionThatIsHeardLives(t *testing.T) {
	inSession(t, func(s *session, _ *fakeDealer) {
		link := newFakeLink(1000)
		s.up(link)
		s.onRegistered(link, registered(10*time.Second))
		for range 20 {
			time.Sleep(29 * time.Second)
			s.hear(link)
		}
		if link.cause() != nil {
			t.Errorf("closed: %v", link.cause())
		}
	})
}

func TestSessionReportsFullState(t *testing.T) {
	inSession(t, func(s *session, _ *fakeDealer) {
		link := newFakeLink(100)
		s.up(link)
		s.onRegistered(link, registered(time.Hour))
		s.onHeartbeatAck(link, &musterv1.HeartbeatAck{})
		s.onHeartbeatAck(link, &musterv1.HeartbeatAck{Flags: uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE)})
		s.onNack(link, &musterv1.Nack{Type: "muster.v1.Heartbeat", Reason: musterv1.Nack_NOT_REGISTERED})
		if n := len(link.take()); n != 2 {
			t.Errorf("%d reports at once, want that of the new link and one more", n)
		}
		time.Sleep(reportGap)
		synctest.Wait()
		sent := link.take()
		if len(sent) != 1 {
			t.Fatalf("sent %v", sent)
		}
		for i, m := range sent {
			if r, ok := m.(*musterv1.Register); !ok || r.SequenceNum != uint64(i+3) {
				t.Errorf("message %d is %v", i, m)
			}
		}
	})
}

// A coordinator that asks for the full state 300 times a second gets it once a
// second (N67).
func TestSessionAskedForFullStateAgainAndAgain(t *testing.T) {
	inSession(t, func(s *session, _ *fakeDealer) {
		link := newFakeLink(1000)
		s.up(link)
		s.onRegistered(link, registered(time.Hour))
		link.take()
		for range 10 * 300 {
			s.hear(link)
			s.onHeartbeatAck(link, &musterv1.HeartbeatAck{Flags: uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE)})
			time.Sleep(time.Second / 300)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(link.take()); n < 10 || n > 11 {
			t.Errorf("%d full reports in 10 s, want one a second", n)
		}
	})
}

// A coordinator that forgets, or is too old to say that it does not, is told
// everything at each beat; one that remembers is not (N61, N62, N71).
func TestSessionTellsAllToAForgetfulCoordinator(t *testing.T) {
	for name, c := range map[string]struct {
		capabilities uint64
		full         bool
	}{
		"older":                  {0, true},
		"all but the attributes": {remembers &^ uint64(musterv1.CoordinatorCapability_REMEMBERS_ATTRIBUTES), true},
		"all but the commands":   {remembers &^ uint64(musterv1.CoordinatorCapability_REMEMBERS_COMMANDS), true},
		"all":                    {remembers, false},
		"more":                   {remembers | 1<<20, false},
	} {
		t.Run(name, func(t *testing.T) {
			inSession(t, func(s *session, _ *fakeDealer) {
				link := newFakeLink(100)
				s.up(link)
				m := registered(10 * time.Second)
				m.Capabilities = c.capabilities
				s.onRegistered(link, m)
				link.take()
				for range 6 {
					time.Sleep(10 * time.Second)
					s.hear(link)
				}
				sent := link.take()
				if len(sent) < 5 || len(sent) > 7 {
					t.Fatalf("%d messages in a minute", len(sent))
				}
				for i, m := range sent {
					r, full := m.(*musterv1.Register)
					if full != c.full || full && r.SequenceNum != uint64(i+2) {
						t.Errorf("message %d is %v", i, m)
					}
				}
			})
		})
	}
}

func TestSessionRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		nack   *musterv1.Nack
		closed bool
		wait   time.Duration
	}{
		{"refused", &musterv1.Nack{Type: registerType, Reason: musterv1.Nack_REFUSED}, true, refusedHoldOff},
		{"invalid", &musterv1.Nack{Type: registerType, Reason: musterv1.Nack_INVALID, Field: "agent_id"}, true, refusedHoldOff},
		{"too old a coordinator", &musterv1.Nack{Type: registerType, Reason: musterv1.Nack_UNKNOWN_TYPE}, true, refusedHoldOff},
		{"put off", &musterv1.Nack{Type: registerType, Reason: musterv1.Nack_RETRY}, true, time.Second},
		{"a heartbeat it does not know", &musterv1.Nack{Type: "muster.v1.Heartbeat", Reason: musterv1.Nack_UNKNOWN_TYPE}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inSession(t, func(s *session, d *fakeDealer) {
				link := newFakeLink(100)
				s.up(link)
				s.onNack(link, c.nack)
				if (link.cause() != nil) != c.closed || d.holdOff != c.wait {
					t.Errorf("closed: %v, hold off %v", link.cause(), d.holdOff)
				}
			})
		})
	}
}

func TestSessionGoodbye(t *testing.T) {
	inSession(t, func(s *session, d *fakeDealer) {
		s.onGoodbye(&musterv1.Goodbye{RetryAfter: durationpb.New(7 * time.Second)})
		if d.holdOff != 7*time.Second {
			t.Errorf("hold off %v", d.holdOff)
		}
		s.leave(time.Second) // without a link: at once
		link := newFakeLink(100)
		s.up(link)
		s.leave(time.Second)
		sent := link.take()
		if bye, ok := sent[len(sent)-1].(*musterv1.Goodbye); !ok || !bye.Leaving || !errors.Is(link.cause(), errStopping) {
			t.Errorf("sent %v, closed %v", sent, link.cause())
		}
	})
}

// A heartbeat that finds the queue full is no heartbeat: the sequence has no gap.
func TestSessionFullQueue(t *testing.T) {
	inSession(t, func(s *session, _ *fakeDealer) {
		link := newFakeLink(1)
		s.up(link)
		s.onRegistered(link, registered(10*time.Second))
		time.Sleep(25 * time.Second)
		link.take()
		s.hear(link)
		time.Sleep(12 * time.Second)
		if b, ok := link.take()[0].(*musterv1.Heartbeat); !ok || b.SequenceNum != 2 {
			t.Errorf("got %v", b)
		}
	})
}

// A late end of an old link does not end the new one.
func TestSessionLateDown(t *testing.T) {
	inSession(t, func(s *session, _ *fakeDealer) {
		old, link := newFakeLink(100), newFakeLink(100)
		s.up(old)
		s.up(link)
		s.onRegistered(link, registered(10*time.Second))
		s.down(old)
		s.onRegistered(old, registered(time.Hour))
		time.Sleep(12 * time.Second)
		if n := len(link.take()); n != 2 {
			t.Errorf("%d messages on the new link", n)
		}
	})
}
