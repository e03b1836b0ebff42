package simagent

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/coordinator"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestFleetAnswersEveryCommand(t *testing.T) {
	rigTest(t, coordinator.Config{}, func(t *testing.T, r *rig) {
		f, stop := r.fleet(Config{Agents: 200, ResultSize: 300, OutputSize: 1000})
		waitRegistered(t, f)
		for range 5 {
			cmd := r.waitState(r.Submit(&musterv1.Command{}), musterv1.Command_DONE, time.Minute)
			if cmd.Counts.Succeeded != 200 {
				t.Errorf("got %v", cmd.Counts)
			}
		}
		time.Sleep(time.Minute)
		stop()
		got := f.Report()
		if got.Commands != 1000 || got.Answered != 1000 || got.Acked != 1000 || got.Chunks != 1000 || got.Repeats != 0 || got.Resent != 0 {
			t.Errorf("got %+v", got)
		}
		if got.Registered != 200 || got.Connected != 200 || got.Registrations != 200 || len(got.Errors) != 0 {
			t.Errorf("got %+v", got)
		}
		if got.Ack.Count != 1000 || got.Register.Count != 200 || got.Beats < 1000 || got.BeatAcks != got.Beats {
			t.Errorf("got %+v", got)
		}
	})
}

func TestFleetFailsAndVanishesAsTold(t *testing.T) {
	rigTest(t, coordinator.Config{Grace: time.Second}, func(t *testing.T, r *rig) {
		failing, _ := r.fleet(Config{Agents: 50, Prefix: "failing-", Fail: 1})
		vanishing, _ := r.fleet(Config{Agents: 50, Prefix: "vanishing-", Vanish: 1})
		halves, _ := r.fleet(Config{Agents: 100, Prefix: "halves-", Fail: 0.5})
		slow, _ := r.fleet(Config{Agents: 10, Prefix: "slow-", Delay: time.Hour})
		for _, f := range []*Fleet{failing, vanishing, halves, slow} {
			waitRegistered(t, f)
		}
		id := r.Submit(&musterv1.Command{Timeout: durationpb.New(time.Second), ExpiresIn: durationpb.New(time.Minute)})
		time.Sleep(5 * time.Second)
		halved := halves.Report().Failed
		if halved < 20 || halved > 80 {
			t.Errorf("%d of 100 failed, want about half", halved)
		}
		if c := r.Command(id).Counts; c.Failed != 50+uint32(halved) || c.Running != 10 {
			t.Errorf("after a while: %v", c)
		}
		c := r.waitState(id, musterv1.Command_DONE, 2*time.Minute).Counts
		if c.Lost != 60 {
			t.Errorf("in the end: %v", c)
		}
		got := vanishing.Report()
		if got.Vanished != 50 || got.Connected != 0 || got.Answered != 0 || len(got.Errors) != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

// Results that are not stored are told again after a restart, and no command is
// started a second time.
func TestFleetOutlivesTheCoordinator(t *testing.T) {
	rigTest(t, coordinator.Config{}, func(t *testing.T, r *rig) {
		f, stop := r.fleet(Config{Agents: 100, Delay: 5 * time.Second})
		waitRegistered(t, f)
		id := r.Submit(&musterv1.Command{})
		time.Sleep(time.Second)
		r.Stop()
		time.Sleep(10 * time.Second) // all end meanwhile
		r.start()
		if c := r.waitState(id, musterv1.Command_DONE, time.Minute).Counts; c.Succeeded != 100 {
			t.Errorf("got %v", c)
		}
		eventually(t, time.Minute, "all are acknowledged", func() bool { return f.Report().Acked == 100 })
		stop()
		got := f.Report()
		if got.Commands != 100 || got.Answered != 100 || got.Registrations != 200 || got.Errors["link"] != 100 || got.Errors["dial"] == 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestFleetStopsCancelledCommands(t *testing.T) {
	rigTest(t, coordinator.Config{}, func(t *testing.T, r *rig) {
		f, stop := r.fleet(Config{Agents: 20, Delay: time.Hour})
		waitRegistered(t, f)
		id := r.Submit(&musterv1.Command{})
		eventually(t, time.Minute, "all run", func() bool { return r.Command(id).Counts.Running == 20 })
		if _, err := r.Commands.CancelCommand(t.Context(), &musterv1.ControlCommandRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "all are stopped", func() bool { return r.Command(id).Counts.Interrupted == 20 })
		stop()
		if got := f.Report(); got.Cancelled != 20 || got.Answered != 20 {
			t.Errorf("got %+v", got)
		}
	})
}
