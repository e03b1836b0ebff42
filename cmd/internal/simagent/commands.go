package simagent

import (
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// This file is the way of a command through an agent: onCommand → begin → end →
// onTargetAck.

const (
	chunkSize  = 64 << 10
	firstGap   = 30 * time.Second // after which an unacknowledged end is told again
	longestGap = 5 * time.Minute
	retryGap   = time.Second           // after the coordinator could not store it
	quick      = 20 * time.Millisecond // of what takes less only the end is told, as by a real agent
)

// onCommand takes a command, or answers a copy of one with where it stands.
func (a *agent) onCommand(_ *link, m *musterv1.Command) error {
	t := &a.fleet.tally
	if e := a.journal.held[m.Id]; e != nil {
		t.repeats.Add(1)
		a.tellLocked(e)
		return nil
	}
	if a.journal.isSettled(m.Id) {
		t.repeats.Add(1)
		return nil
	}
	spared := t.commands.Add(1) <= int64(a.fleet.cfg.Spare)
	if !spared && chance(a.fleet.cfg.Vanish) {
		t.vanished.Add(1)
		a.ended = true
		a.stopTimersLocked()
		return errVanished
	}
	e := a.journal.receive(m.Id)
	e.fails = !spared && chance(a.fleet.cfg.Fail)
	a.beginLocked(e)
	return nil
}

func chance(share float64) bool { return rand.Float64() < share }

func (a *agent) beginLocked(e *entry) {
	a.journal.start(e)
	d := a.fleet.cfg.Delay
	if d >= quick {
		a.tellLocked(e)
	}
	if d > 0 {
		e.timer = time.AfterFunc(d, func() { a.finish(e) })
		return
	}
	a.endLocked(e, e.outcome())
}

// finish ends a command that took its time.
func (a *agent) finish(e *entry) {
	if l := a.finishOnce(e); l != nil {
		l.flush()
	}
}

func (a *agent) finishOnce(e *entry) *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || isFinal(e.state) {
		return nil
	}
	a.endLocked(e, e.outcome())
	return a.link
}

func (a *agent) endLocked(e *entry, state musterv1.Target_State) {
	a.journal.end(e, state)
	a.fleet.tally.answered.Add(1)
	if state == musterv1.Target_FAILED {
		a.fleet.tally.failed.Add(1)
	}
	a.tellLocked(e)
}

// onCancel ends a command that goes on, and one that did not come yet.
func (a *agent) onCancel(_ *link, m *musterv1.Cancel) error {
	e := a.journal.held[m.CommandId]
	switch {
	case e == nil && a.journal.isSettled(m.CommandId):
	case e == nil:
		a.fleet.tally.cancelled.Add(1)
		a.endLocked(a.journal.receive(m.CommandId), musterv1.Target_CANCELLED)
	case isFinal(e.state):
		a.tellLocked(e)
	default:
		a.fleet.tally.cancelled.Add(1)
		a.endLocked(e, musterv1.Target_INTERRUPTED)
	}
	return nil
}

// onTargetAck forgets what is stored.
func (a *agent) onTargetAck(_ *link, m *musterv1.TargetAck) error {
	for _, id := range m.CommandIds {
		if e := a.journal.settle(id); e != nil {
			a.fleet.tally.acked.Add(1)
			a.fleet.tally.ack.add(a.heard.Sub(e.told))
		}
	}
	return nil
}

// retryLocked tells an end again that the coordinator could not store.
func (a *agent) retryLocked(id string) {
	e := a.journal.held[id]
	if e == nil || !isFinal(e.state) {
		return
	}
	e.stopTimer()
	e.timer = time.AfterFunc(retryGap<<min(e.tries, 5), func() { a.retry(e) })
}

func (a *agent) retry(e *entry) {
	if l := a.retryOnce(e); l != nil {
		l.flush()
	}
}

func (a *agent) retryOnce(e *entry) *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || a.journal.held[e.id] != e {
		return nil
	}
	a.fleet.tally.resent.Add(1)
	a.tellLocked(e)
	return a.link
}

// tellLocked says where a command stands, if there is somebody to hear it; what
// is not heard is in the next Register.
func (a *agent) tellLocked(e *entry) {
	if a.link == nil || !a.registered || a.fleet.cfg.Brief && !isFinal(e.state) {
		return
	}
	if isFinal(e.state) {
		a.tellOutputLocked(e)
		now := time.Now()
		if e.told.IsZero() {
			e.told = now
		}
		e.due = now.Add(min(firstGap<<min(e.tries, 5), longestGap))
		e.tries++
	}
	a.link.push(a.targetLocked(e))
}

func (a *agent) tellOutputLocked(e *entry) {
	if e.ran() {
		for from := 0; from < len(a.fleet.output); from += chunkSize {
			a.link.push(&musterv1.OutputChunk{
				CommandId: e.id, Stream: musterv1.Stream_STDOUT, Offset: uint32(from),
				Data: a.fleet.output[from:min(from+chunkSize, len(a.fleet.output))],
			})
			a.fleet.tally.chunks.Add(1)
		}
	}
}

func (a *agent) targetLocked(e *entry) *musterv1.Target {
	t := &musterv1.Target{CommandId: e.id, AgentId: a.id, State: e.state, JournalSeq: a.journal.position}
	if !e.started.IsZero() {
		t.StartTime = timestamppb.New(e.started)
	}
	if !isFinal(e.state) {
		return t
	}
	t.EndTime = timestamppb.New(e.finished)
	switch e.state {
	case musterv1.Target_SUCCEEDED:
		t.ExitCode = proto.Int32(0)
	case musterv1.Target_FAILED:
		t.ExitCode, t.Reason = proto.Int32(1), "told to fail"
	case musterv1.Target_INTERRUPTED:
		t.Reason = "cancelled"
	}
	if e.ran() {
		t.Result, t.Stdout = a.fleet.result, a.fleet.stdout
	}
	return t
}
