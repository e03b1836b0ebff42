package simagent

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	running     = musterv1.Target_RUNNING
	succeeded   = musterv1.Target_SUCCEEDED
	cancelled   = musterv1.Target_CANCELLED
	interrupted = musterv1.Target_INTERRUPTED
)

func TestCommandIsAnsweredAndForgottenOnceStored(t *testing.T) {
	stationTest(t, Config{ResultSize: 300, OutputSize: 150_000}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"})
		end := s.targets[len(s.targets)-1]
		s.wantTold(succeeded)
		if end.AgentId != "sim-00000" || end.GetExitCode() != 0 || len(end.Result) != 300 || end.Stdout.GetKept() != 150_000 || end.JournalSeq != 3 {
			t.Errorf("got %v", end)
		}
		if !bytes.Equal(s.output, outputOf(150_000)) {
			t.Errorf("%d bytes of output came", len(s.output))
		}
		s.say(&musterv1.Command{Id: "c1"})
		s.wantTold(succeeded)
		s.say(&musterv1.TargetAck{CommandIds: []string{"c1", "unknown"}})
		s.say(&musterv1.Command{Id: "c1"}, &musterv1.TargetAck{CommandIds: []string{"c1"}})
		s.wantTold()
		s.wantReport(func(r Report) bool {
			return r.Commands == 1 && r.Repeats == 2 && r.Answered == 1 && r.Acked == 1 && r.Ack.Count == 1
		})
	})
}

func TestCopyOfARunningCommandIsNotStarted(t *testing.T) {
	stationTest(t, Config{Delay: time.Minute}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"}, &musterv1.Command{Id: "c1"})
		s.wantTold(running, running)
		s.say(&musterv1.TargetAck{CommandIds: []string{"c1"}}) // nonsense
		time.Sleep(59 * time.Second)
		s.wantTold()
		time.Sleep(2 * time.Second)
		s.wantTold(succeeded)
		s.wantReport(func(r Report) bool { return r.Commands == 1 && r.Repeats == 1 && r.Acked == 0 })
	})
}

func TestQuickCommandIsToldOnce(t *testing.T) {
	stationTest(t, Config{Delay: quick - 1}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"})
		s.wantTold()
		time.Sleep(quick)
		s.wantTold(succeeded)
	})
}

func TestBriefAgentTellsOnlyTheEnd(t *testing.T) {
	stationTest(t, Config{Brief: true, Delay: time.Second}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"}, &musterv1.Command{Id: "c1"})
		s.wantTold()
		time.Sleep(2 * time.Second)
		s.wantTold(succeeded)
	})
}

// The copies that may still be on a link when a command is settled are known, even
// behind as many others as may be in flight.
func TestSettledCommandsAreRemembered(t *testing.T) {
	stationTest(t, Config{}, func(t *testing.T, s *station) {
		for i := range 3 * settledKept {
			id := string(rune('A'+i%26)) + time.Duration(i).String()
			s.say(&musterv1.Command{Id: id}, &musterv1.TargetAck{CommandIds: []string{id}}, &musterv1.Command{Id: id})
		}
		s.wantReport(func(r Report) bool {
			return r.Commands == 3*settledKept && r.Repeats == 3*settledKept && r.Acked == 3*settledKept
		})
	})
}

func TestEndIsToldUntilItIsAcknowledged(t *testing.T) {
	stationTest(t, Config{OutputSize: 10}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"})
		s.wantTold(succeeded)
		time.Sleep(45 * time.Second) // 30 s, and the next beat
		s.wantTold(succeeded)
		time.Sleep(75 * time.Second)
		s.wantTold(succeeded)
		s.cut()
		s.wantTold(succeeded)
		if got := s.registers[1].Commands; len(got) != 1 || got[0].CommandId != "c1" || got[0].State != succeeded {
			t.Errorf("the second Register has %v", got)
		}
		s.say(&musterv1.Nack{Reason: musterv1.Nack_RETRY, Type: targetName, Field: "c1"})
		s.set(func() { s.output = nil })
		time.Sleep(3 * time.Second)
		s.wantTold(succeeded)
		if len(s.output) != 10 {
			t.Errorf("%d bytes of output came again", len(s.output))
		}
		s.set(func() { s.registered.SettledIds = []string{"c1"} })
		s.cut()
		s.wantTold()
		s.cut()
		if got := s.registers[3].Commands; len(got) != 0 {
			t.Errorf("the last Register has %v", got)
		}
		s.wantReport(func(r Report) bool {
			return r.Acked == 1 && r.Resent == 3 && r.Registrations == 4 && r.Errors["link"] == 3
		})
	})
}

func TestCommandEndsWhileTheLinkIsDown(t *testing.T) {
	stationTest(t, Config{Delay: time.Second}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"})
		s.wantTold(running)
		s.set(func() { s.registered.ReconnectWindow = durationpb.New(time.Millisecond) })
		s.say(&musterv1.Goodbye{RetryAfter: durationpb.New(3 * time.Second)})
		s.cut()
		s.wantTold(succeeded)
		if got := s.registers[1].Commands; len(got) != 1 || got[0].State != succeeded {
			t.Errorf("the second Register has %v", got)
		}
	})
}

func TestCancel(t *testing.T) {
	stationTest(t, Config{Delay: time.Hour}, func(t *testing.T, s *station) {
		s.say(&musterv1.Cancel{CommandId: "early"}, &musterv1.Command{Id: "early"})
		s.wantTold(cancelled, cancelled)
		s.say(&musterv1.Command{Id: "c1"}, &musterv1.Cancel{CommandId: "c1"}, &musterv1.Cancel{CommandId: "c1"})
		s.wantTold(running, interrupted, interrupted)
		s.say(&musterv1.TargetAck{CommandIds: []string{"c1"}}, &musterv1.Cancel{CommandId: "c1"})
		s.wantTold()
		s.wantReport(func(r Report) bool { return r.Commands == 1 && r.Cancelled == 2 && r.Answered == 2 })
	})
}

func TestBeatsAreCountedOn(t *testing.T) {
	stationTest(t, Config{}, func(t *testing.T, s *station) {
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		n := len(s.beats)
		for i, seq := range s.beats {
			if seq != uint64(i+2) {
				t.Errorf("beat %d has number %d", i, seq)
			}
		}
		s.flags = uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE)
		s.mu.Unlock()
		if n < 54 || n > 68 {
			t.Errorf("%d beats in 10 minutes, want one each 10 s", n)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		last := max(s.beats[len(s.beats)-1], s.registers[len(s.registers)-1].SequenceNum)
		if len(s.registers) != 2 || last != uint64(len(s.beats)+2) {
			t.Errorf("asked for its full state, it registered %d times; %d beats, the last number is %d", len(s.registers), len(s.beats), last)
		}
		s.wantReport(func(r Report) bool {
			return r.Registrations == 1 && r.Registered == 1 && r.Beats == r.BeatAcks && r.Beat.Count == uint64(r.Beats)
		})
	})
}

func TestBeatIntervalOfItsOwn(t *testing.T) {
	stationTest(t, Config{BeatInterval: 100 * time.Millisecond}, func(t *testing.T, s *station) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(s.beats); n < 90 || n > 115 {
			t.Errorf("%d beats in 10 s, want 100", n)
		}
		s.set(func() { s.mute = true })
		time.Sleep(29 * time.Second)
		s.wantReport(func(r Report) bool { return r.Errors == nil })
	})
}

func TestSilentCoordinatorIsLeft(t *testing.T) {
	stationTest(t, Config{}, func(t *testing.T, s *station) {
		time.Sleep(time.Minute)
		s.set(func() { s.mute = true })
		time.Sleep(18 * time.Second) // the last answer is up to 11 s old
		s.wantReport(func(r Report) bool { return r.Errors == nil && r.Registered == 1 })
		time.Sleep(27 * time.Second)
		s.wantReport(func(r Report) bool { return r.Errors["silent"] == 1 && r.Registered == 0 && r.Connected == 1 })
		time.Sleep(31 * time.Second) // no answer to Register either
		s.wantReport(func(r Report) bool { return r.Errors["silent"] == 1 && r.Errors["link"] >= 1 })
		s.set(func() { s.mute = false })
		time.Sleep(time.Minute)
		s.wantReport(func(r Report) bool { return r.Registered == 1 && r.Registrations == 2 })
	})
}

func TestRefusedAgentStaysAwayForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		answer *musterv1.Nack
		again  time.Duration
	}{
		"refused": {&musterv1.Nack{Type: registerName, Reason: musterv1.Nack_REFUSED}, refusedHoldOff},
		"invalid": {&musterv1.Nack{Type: registerName, Reason: musterv1.Nack_INVALID, Field: "agent_id"}, refusedHoldOff},
		"busy":    {&musterv1.Nack{Type: registerName, Reason: musterv1.Nack_RETRY}, busyHoldOff},
	} {
		t.Run(name, func(t *testing.T) {
			stationTest(t, Config{}, func(t *testing.T, s *station) {
				s.set(func() { s.answer = c.answer })
				s.net.Cut()
				time.Sleep(2 * time.Second) // the window is over: it was refused
				n := s.came()
				time.Sleep(c.again * 9 / 10)
				if c.again > 2*time.Second && s.came() != n {
					t.Errorf("it came %d times more", s.came()-n)
				}
				s.set(func() { s.answer = nil })
				time.Sleep(c.again + 5*time.Second)
				s.wantReport(func(r Report) bool { return r.Registered == 1 && r.Errors["refused"] >= 1 })
			})
		})
	}
}

func TestUnregisteredAgentRegistersAgain(t *testing.T) {
	stationTest(t, Config{}, func(t *testing.T, s *station) {
		s.say(&musterv1.Nack{Type: "muster.v1.Heartbeat", Reason: musterv1.Nack_NOT_REGISTERED})
		if len(s.registers) != 2 {
			t.Errorf("registered %d times", len(s.registers))
		}
		s.say(&musterv1.Nack{Type: "muster.v1.Target", Reason: musterv1.Nack_RETRY, Field: "unknown"})
		s.say(&musterv1.Command{Id: "c1"}) // the link lives
		s.wantTold(succeeded)
		s.wantReport(func(r Report) bool { return r.Errors["nack_not_registered"] == 1 && r.Errors["nack_retry"] == 1 })
	})
}

func TestUnknownMessagesAreCounted(t *testing.T) {
	stationTest(t, Config{}, func(t *testing.T, s *station) {
		s.say(&musterv1.Busy{CommandId: "x"}, &musterv1.Command{Id: "c1"})
		s.wantTold(succeeded)
		s.wantReport(func(r Report) bool { return r.Errors["unknown_type"] == 1 && r.Connected == 1 })
	})
}

func TestVanishedAgentIsGoneForEver(t *testing.T) {
	stationTest(t, Config{Vanish: 1, Spare: 1}, func(t *testing.T, s *station) {
		s.say(&musterv1.Command{Id: "c1"})
		s.wantTold(succeeded)
		s.say(&musterv1.Command{Id: "c2"})
		s.wantTold()
		time.Sleep(time.Hour)
		if n := s.came(); n != 1 {
			t.Errorf("it registered %d times", n)
		}
		s.wantReport(func(r Report) bool { return r.Vanished == 1 && r.Commands == 2 && r.Connected == 0 && r.Errors == nil })
	})
}

func TestFleetNeedsAgentsAndANetwork(t *testing.T) {
	if _, err := New(Config{Agents: 1}); err == nil {
		t.Error("a fleet without a network was made")
	}
	if _, err := New(Config{Dial: (&rig{}).dial}); err == nil {
		t.Error("a fleet of nobody was made")
	}
}
