package simagent

import (
	"slices"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// journal is what a real agent keeps on disk: where its commands stand.
type journal struct {
	position uint32            // records "written"
	held     map[string]*entry // not settled
	settled  []string          // the latest, so that a copy under way is not taken for new
	oldest   int               // of settled, once it is full
}

// settledKept is the most commands that a coordinator has in flight on one agent.
const settledKept = 64

// entry is one command.
type entry struct {
	id       string
	state    musterv1.Target_State
	fails    bool // when it ends
	started  time.Time
	finished time.Time
	told     time.Time // when its end was told first
	due      time.Time // when it is told again
	tries    int
	timer    *time.Timer // of its run, or of the next try
}

func isFinal(s musterv1.Target_State) bool { return s >= musterv1.Target_SUCCEEDED }

// ran says that the command ran to its end.
func (e *entry) ran() bool {
	return e.state == musterv1.Target_SUCCEEDED || e.state == musterv1.Target_FAILED
}

// outcome is how the command ends if nothing comes between.
func (e *entry) outcome() musterv1.Target_State {
	if e.fails {
		return musterv1.Target_FAILED
	}
	return musterv1.Target_SUCCEEDED
}

func (e *entry) stopTimer() {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}

func (j *journal) receive(id string) *entry {
	if j.held == nil {
		j.held = map[string]*entry{}
	}
	j.position++
	e := &entry{id: id, state: musterv1.Target_RECEIVED}
	j.held[id] = e
	return e
}

func (j *journal) start(e *entry) {
	j.position++
	e.state, e.started = musterv1.Target_RUNNING, time.Now()
}

func (j *journal) end(e *entry, state musterv1.Target_State) {
	e.stopTimer()
	j.position++
	e.state, e.finished = state, time.Now()
}

// settle forgets a command that has ended, and returns it; nil: there is none.
func (j *journal) settle(id string) *entry {
	e := j.held[id]
	if e == nil || !isFinal(e.state) {
		return nil
	}
	e.stopTimer()
	delete(j.held, id)
	if len(j.settled) < settledKept {
		j.settled = append(j.settled, id)
		return e
	}
	j.settled[j.oldest] = id
	j.oldest = (j.oldest + 1) % settledKept
	return e
}

func (j *journal) isSettled(id string) bool { return slices.Contains(j.settled, id) }

// list is what Register tells of the commands.
func (j *journal) list() (held []*musterv1.HeldCommand) {
	for _, e := range j.held {
		held = append(held, &musterv1.HeldCommand{CommandId: e.id, State: e.state})
	}
	return held
}

func (j *journal) stop() {
	for _, e := range j.held {
		e.stopTimer()
	}
}
