package simagent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
)

// tally counts what happens to all agents of a fleet.
type tally struct {
	connected, registered atomic.Int64 // now
	registrations         atomic.Int64
	commands, repeats     atomic.Int64
	answered, failed      atomic.Int64
	cancelled, vanished   atomic.Int64
	acked, resent, chunks atomic.Int64
	beats, beatAcks       atomic.Int64
	offers, pieces        atomic.Int64
	applied, refused      atomic.Int64
	register, beat, ack   histogram

	mu     sync.Mutex
	errors map[string]int64
}

// fail counts an error by its kind.
func (t *tally) fail(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.errors == nil {
		t.errors = map[string]int64{}
	}
	t.errors[kind]++
}

// failUnless counts an error that is not the end of ctx.
func (t *tally) failUnless(ctx context.Context, kind string) {
	if ctx.Err() == nil {
		t.fail(kind)
	}
}

func (t *tally) failures() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.errors)
}

// kindOf names why a link broke.
func kindOf(err error) string {
	switch {
	case errors.Is(err, errSilent):
		return "silent"
	case errors.Is(err, errRefused):
		return "refused"
	case errors.Is(err, errDied):
		return "died"
	case errors.Is(err, errBacklog):
		return "backlog"
	}
	return "link"
}
