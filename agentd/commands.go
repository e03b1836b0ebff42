package agentd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// This file is the way of a command through the agent: onCommand → accepted →
// start → finish → ended → settled. A cancel may end it on each stretch. One that
// finds a free slot and nobody before it goes from onCommand to runStarted at once.

const (
	busyRetry        = 30 * time.Second
	defaultExpiresIn = time.Hour
)

// errNotBegun tells a run that its command is not to be started now.
var errNotBegun = errors.New("it waits, or is not new")

// onCommand takes a command, or answers a copy of one with where it stands.
func (a *Agent) onCommand(link Link, m *musterv1.Command) error {
	a.session.hear(link)
	if !name.MatchString(m.Id) {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "id", Detail: nameRule}
	}
	m = known(m)
	h := &held{id: m.Id, command: m, received: a.cfg.clock.now(), lifetime: lifetime(m)}
	var refusal *musterv1.Target
	job, err := a.newJob(m)
	if h.job = job; err != nil {
		refusal = a.rejected(m.Id, err.Error())
	}
	v, there := a.receive(link, h, refusal)
	if v == isOld {
		v, there = a.receive(link, h, a.rejected(m.Id, "it is older than what this agent remembers, and may have run"))
	}
	switch v {
	case isKnown:
		a.metrics.repeats.Inc()
		a.tell(there)
	case isOver:
		a.metrics.repeats.Inc()
		a.log.Debug("copy of a settled command", "cmd", m.Id)
	case isMore:
		a.busy(link, m.Id)
	}
	return nil
}

// receive journals a command, and starts it when it need not wait.
func (a *Agent) receive(link Link, h *held, refusal *musterv1.Target) (verdict, *held) {
	accepted := func(h *held, err error) { a.accepted(link, h, err) }
	var b *beginning
	if refusal == nil && a.left(h) > 0 {
		b = a.begin(link, h)
	}
	v, there := a.ledger.receive(h, refusal, b, accepted, a.ended)
	if b != nil && !b.begun {
		b.done <- errNotBegun
	}
	return v, there
}

// begin makes a command ready to be run, if there is a free slot and none waits
// for one; else it returns nil. Whether it runs the ledger decides: that is the
// later of the two, so that the journal is what is woken last and goes on first.
func (a *Agent) begin(link Link, h *held) *beginning {
	ctx, stop := context.WithCancelCause(context.Background())
	b := &beginning{run: rand.Text(), stop: stop, done: make(chan error, 1)}
	job := h.job // which is let go if another one ends the command
	taken := a.executor.begin(func(agent context.Context) {
		defer stop(nil)
		defer context.AfterFunc(agent, func() { stop(context.Cause(agent)) })()
		r := a.newRun(h, b.run, false, func() error {
			err := <-b.done
			if agent.Err() != nil {
				stop(context.Cause(agent)) // not a moment later
			}
			return err
		})
		err := a.runStarted(ctx, h, job, r)
		if err != nil && !errors.Is(err, errNotBegun) {
			a.busy(link, h.id) // nobody has it: it comes again
		}
	})
	if !taken {
		stop(nil)
		return nil
	}
	return b
}

// known is what this agent knows of a command. What a newer coordinator adds is
// as if it were not there: it neither counts nor is it kept.
func known(m *musterv1.Command) *musterv1.Command {
	return &musterv1.Command{
		Id: m.Id, Type: m.Type, Name: m.Name, Input: m.Input, Labels: m.Labels, Idempotent: m.Idempotent,
		Timeout: plain(m.Timeout), ExpiresIn: plain(m.ExpiresIn),
	}
}

func plain(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return &durationpb.Duration{Seconds: d.Seconds, Nanos: d.Nanos}
}

func (a *Agent) busy(link Link, id string) {
	a.metrics.busy.Inc()
	a.quiet.Warn("busy", "cmd", id)
	_ = link.Send(&musterv1.Busy{CommandId: id, RetryAfter: durationpb.New(busyRetry)}) // unheard, it is sent again all the same
}

// accepted is called when RECEIVED is on disk, or cannot be.
func (a *Agent) accepted(link Link, h *held, err error) {
	if err != nil {
		a.busy(link, h.id)
		return
	}
	a.tell(h)
	a.executor.put(h)
}

// left is the time until a command expires.
func (a *Agent) left(h *held) time.Duration {
	return h.lifetime - a.cfg.clock.since(h.received)
}

// lifetime is the time that a command has from its receipt. Times that no
// coordinator sends, such as less than nothing, mean that it has none left.
func lifetime(c *musterv1.Command) time.Duration {
	if c.GetExpiresIn() == nil {
		return defaultExpiresIn
	}
	return max(0, c.ExpiresIn.AsDuration())
}

func (a *Agent) expire(h *held) {
	t := &musterv1.Target{State: musterv1.Target_EXPIRED, Reason: "it expired while it waited on the agent", EndTime: timestamp(time.Now())}
	a.finish(h, result{target: didRun(h, t)})
}

// didRun corrects a state that says "certainly did not run" of a command that
// waited to be run once more.
func didRun(h *held, t *musterv1.Target) *musterv1.Target {
	if h.run != "" && (t.State == musterv1.Target_CANCELLED || t.State == musterv1.Target_EXPIRED) {
		t.State, t.Reason = musterv1.Target_INTERRUPTED, "the agent ended while it ran; before it ran again: "+t.Reason
	}
	return t
}

// start decides that a command runs, and returns what is left to do.
func (a *Agent) start(ctx context.Context, h *held) func() {
	ctx, stop := context.WithCancelCause(ctx)
	mark := rand.Text()
	started := a.ledger.start(h, mark, a.cfg.clock.now(), stop)
	if started == nil {
		stop(nil)
		return nil
	}
	return func() {
		defer stop(nil)
		r := a.newRun(h, mark, h.again, func() error { return <-started })
		if err := a.runStarted(ctx, h, h.job, r); err != nil {
			<-a.finish(h, result{target: a.rejected(h.id, fmt.Sprintf("not started: it could not be journaled: %v", err))})
		}
	}
}

// runStarted runs a command to its end. It makes ready what it can while the
// start is on its way to the disk; after an error of that nothing was run.
func (a *Agent) runStarted(ctx context.Context, h *held, j job, r run) error {
	ended := j.run(ctx, r)
	if err := r.onDisk(); err != nil {
		return err
	}
	a.outbox.unwatch(h.id)
	if r.again {
		ended.target = didRun(h, ended.target)
	}
	<-a.finish(h, ended)
	return nil
}

// newRun is for a command whose start is being journaled.
func (a *Agent) newRun(h *held, mark string, again bool, journaled func() error) run {
	r := run{mark: mark, again: again, onDisk: sync.OnceValue(journaled), joined: func(g plugin.Group) {
		a.ledger.joined(h, g)
		a.tell(h)
		a.log.Debug("command started", "cmd", h.id, "type", h.command.Type, "pid", g.ID)
	}}
	if !again { // or what this run says would be mixed up with what the first one said
		r.live = func(stdout, stderr plugin.Head) { a.outbox.watch(h.id, stdout, stderr) }
		r.grown = func() { a.outbox.grown(h.id) }
	}
	return r
}

// finish makes a command final. The channel is closed when that is on disk, or
// when the command was final before.
func (a *Agent) finish(h *held, r result) <-chan struct{} {
	t := r.target
	t.CommandId, t.AgentId = h.id, a.id
	if r.ran {
		if err := a.outputs.save(t, r.stdout, r.stderr); err != nil {
			a.metrics.outputCut.Inc()
			a.log.Error("output not kept", "cmd", h.id, "err", err)
		}
	}
	done := make(chan struct{})
	first := a.ledger.end(h, t, func(h *held, err error) {
		a.ended(h, err)
		close(done)
	})
	if !first {
		close(done)
	}
	return done
}

// ended is called when a final state is on disk, or cannot be.
func (a *Agent) ended(h *held, err error) {
	t, _ := a.ledger.standing(h)
	a.metrics.ended.WithLabelValues(t.State.String()).Inc()
	a.log.Info("command ended", "cmd", h.id, "state", t.State, "reason", t.Reason)
	if err != nil {
		a.log.Error("the end of a command is not in the journal", "cmd", h.id, "err", err)
	}
	a.outbox.tell(t)
}

// tell reports where a command stands, if that may be told yet.
func (a *Agent) tell(h *held) {
	t, ok := a.ledger.standing(h)
	if !ok {
		return
	}
	if t.State < musterv1.Target_SUCCEEDED {
		t.AgentId, t.JournalSeq = a.id, a.journal.position().Seq
	}
	a.outbox.tell(t)
}

// settle forgets what the coordinator has stored.
func (a *Agent) settle(ids []string) {
	a.ledger.settle(ids, func(id string) { a.outputs.remove(id) })
	for _, id := range ids {
		a.outbox.forget(id)
	}
}

func (a *Agent) rejected(id, why string) *musterv1.Target {
	return &musterv1.Target{
		CommandId: id, AgentId: a.id, State: musterv1.Target_REJECTED, Reason: reason(why), EndTime: timestamp(time.Now()),
	}
}
