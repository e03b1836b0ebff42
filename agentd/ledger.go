package agentd

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// held is a command that the agent knows and that is not settled. The ledger's
// lock guards what changes; command and job belong to whoever runs it, and are
// let go when it ends.
type held struct {
	id       string
	order    int // of arrival
	command  *musterv1.Command
	job      job
	received stamp
	lifetime time.Duration // until it expires, from its receipt

	state musterv1.Target_State // RECEIVED, RUNNING or final
	final *musterv1.Target      // in a final state
	told  bool                  // the state is on disk and may be told

	run     string       // the mark of its run, once it was started
	group   plugin.Group // of its run, once that is known
	started stamp
	again   bool                    // it was started before
	stop    context.CancelCauseFunc // ends its run

	cancelled bool // while it ran
	refused   bool // the coordinator has refused its report
}

// ledger is the journal in memory: the commands that are held. What becomes of
// them is decided here, under one lock, and journaled in the same order.
type ledger struct {
	journal *journal
	queue   int // how many may wait to be started
	limit   int // how many may be held

	mu      sync.Mutex
	held    map[string]*held
	arrived int
	waiting int // those that are RECEIVED
}

func newLedger(j *journal, queue, limit int) *ledger {
	return &ledger{journal: j, queue: queue, limit: limit, held: map[string]*held{}}
}

// verdict is what a command that came is taken for.
type verdict int

const (
	isNew   verdict = iota
	isKnown         // a copy of one that is held
	isOver          // a copy of one that is settled
	isOld           // so old that it may be a copy of one that was forgotten
	isMore          // than there is room for
)

// beginning starts a command as it comes, if none is to be started before it.
// Its receipt and its start are then one record, so both are on disk or neither.
type beginning struct {
	run   string
	stop  context.CancelCauseFunc
	done  chan error // cap 1; receives when that is on disk, or cannot be
	begun bool       // by receive; else it waits after all, or is not new
}

// receive takes a command. A new one is journaled, and accepted is called when
// that is done; with a refusal it is journaled as REJECTED, and ended is called;
// with a beginning, which may be nil, it is started.
func (l *ledger) receive(h *held, refusal *musterv1.Target, b *beginning, accepted func(*held, error), ended func(*held, error)) (verdict, *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.held[h.id]; known != nil {
		return isKnown, known
	}
	settled, tooOld := l.journal.forgot(h.id)
	switch {
	case settled:
		return isOver, nil
	case len(l.held) >= l.limit, refusal == nil && l.waiting >= l.queue:
		return isMore, nil
	case tooOld && refusal == nil:
		return isOld, nil
	}
	l.add(h)
	if refusal != nil {
		l.endLocked(h, refusal, ended)
		return isNew, h
	}
	body, err := proto.Marshal(h.command)
	if err != nil {
		l.remove(h)
		return isMore, nil
	}
	received := record{Kind: kindReceived, ID: h.id, Command: body, At: h.received}
	if b != nil && l.waiting == 1 {
		l.beginLocked(h, received, b)
		return isNew, h
	}
	l.journal.append(received, func(err error) {
		if l.written(h, err) {
			accepted(h, err)
		}
	})
	return isNew, h
}

func (l *ledger) beginLocked(h *held, received record, b *beginning) {
	l.running(h)
	h.run, h.started, h.stop = b.run, h.received, b.stop
	received.Run = b.run
	b.begun = true
	l.journal.append(received, func(err error) {
		if err != nil {
			l.drop(h)
		} else {
			l.tell(h, musterv1.Target_RUNNING)
		}
		b.done <- err
	})
}

// start turns a command that waits into one that runs, until stop is called.
// The channel receives when that is on disk, or cannot be. It is nil when the
// command waits no more.
func (l *ledger) start(h *held, run string, at stamp, stop context.CancelCauseFunc) <-chan error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[h.id] != h || h.state != musterv1.Target_RECEIVED {
		return nil
	}
	l.running(h)
	h.again = h.run != ""
	h.run, h.group, h.started, h.stop = run, plugin.Group{}, at, stop
	done := make(chan error, 1)
	l.journal.append(record{Kind: kindStarted, ID: h.id, Run: run, At: at}, func(err error) {
		if err == nil {
			l.tell(h, musterv1.Target_RUNNING)
		}
		done <- err
	})
	return done
}

// joined notes the process group of a command that runs.
func (l *ledger) joined(h *held, g plugin.Group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.group = g
	l.journal.appendLazily(record{Kind: kindGroup, ID: h.id, Group: g}, nil)
}

// end makes a command final. ended is called when that is on disk, or cannot
// be. The first end counts: false, and another one was there before, or the
// command was settled while it waited. One that runs has only its own end.
func (l *ledger) end(h *held, t *musterv1.Target, ended func(*held, error)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[h.id] != h || h.final != nil {
		return false
	}
	l.endLocked(h, t, ended)
	return true
}

func (l *ledger) endLocked(h *held, t *musterv1.Target, ended func(*held, error)) {
	l.final(h, t)
	l.journal.append(record{Kind: kindEnded, ID: h.id, Target: encodeTarget(t)}, func(err error) {
		// A final state that cannot be written is told all the same: the
		// coordinator keeps the first one it gets.
		t.JournalSeq = l.journal.position().Seq
		l.tell(h, t.State)
		ended(h, err)
	})
}

func encodeTarget(t *musterv1.Target) []byte {
	b, err := proto.Marshal(t)
	if err != nil { // only text that is not UTF-8 does that
		t.Reason, t.Result, t.Signal = "the result is not UTF-8", nil, ""
		b, _ = proto.Marshal(t)
	}
	return b
}

// settle forgets commands that the coordinator has the final state of. One
// that runs is kept: its end will be told. gone is called for each, when that
// is written.
func (l *ledger) settle(ids []string, gone func(id string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		h := l.held[id]
		if h == nil || h.state == musterv1.Target_RUNNING {
			continue
		}
		l.remove(h)
		l.journal.appendLazily(record{Kind: kindSettled, ID: id}, func(error) { gone(id) })
	}
}

// standing returns what may be told of a command now; false: nothing yet.
func (l *ledger) standing(h *held) (*musterv1.Target, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.told {
		return nil, false
	}
	return h.target(), true
}

func (h *held) target() *musterv1.Target {
	if h.final != nil {
		return h.final
	}
	t := &musterv1.Target{CommandId: h.id, State: h.state}
	if h.state == musterv1.Target_RUNNING {
		t.StartTime = timestamp(h.started.Wall)
	}
	return t
}

// commands lists what is held for a Register, those that are not final first.
func (l *ledger) commands() []*musterv1.HeldCommand {
	unfinished := l.inOrder(func(h *held) bool { return h.told && h.final == nil })
	ended := l.inOrder(func(h *held) bool { return h.told && h.final != nil })
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*musterv1.HeldCommand
	for _, h := range append(unfinished, ended...) {
		list = append(list, &musterv1.HeldCommand{CommandId: h.id, State: h.state})
	}
	return list
}

func (l *ledger) holds(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[id] != nil
}

// inOrder returns the commands that pick chooses, in order of arrival.
func (l *ledger) inOrder(pick func(*held) bool) []*held {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []*held
	for _, h := range l.held {
		if pick(h) {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, func(a, b *held) int { return a.order - b.order })
	return hs
}

// drop lets go of a command that could not be received.
func (l *ledger) drop(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(h)
}

// tell notes that a state is on disk, unless another one was decided since.
func (l *ledger) tell(h *held, s musterv1.Target_State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.told = h.told || h.state == s
}

// written is told whether RECEIVED is on disk; false: the command was ended
// meanwhile, and nobody asks any more.
func (l *ledger) written(h *held, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.state != musterv1.Target_RECEIVED {
		return false
	}
	h.told = err == nil
	if err != nil {
		l.remove(h)
	}
	return true
}

// The rest moves commands from state to state; the caller holds the lock.

func (l *ledger) add(h *held) {
	l.arrived++
	h.order = l.arrived
	h.state = musterv1.Target_RECEIVED
	l.held[h.id] = h
	l.waiting++
}

func (l *ledger) running(h *held) {
	l.leave(h)
	h.state, h.told = musterv1.Target_RUNNING, false
}

func (l *ledger) final(h *held, t *musterv1.Target) {
	l.leave(h)
	h.state, h.final, h.told = t.State, t, false
	h.command, h.job, h.stop = nil, nil, nil
}

func (l *ledger) remove(h *held) {
	l.leave(h)
	delete(l.held, h.id)
}

func (l *ledger) leave(h *held) {
	if l.held[h.id] == h && h.state == musterv1.Target_RECEIVED {
		l.waiting--
	}
}
