package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// ackDelay is how long acknowledgements are collected. Agents send a report
// again after 30 s at the earliest, so none of them notices; and a command's
// last result is not behind the acknowledgements of the others.
const ackDelay = 500 * time.Millisecond

// acker tells agents which of their reports are stored, several at a time.
type acker struct {
	mu      sync.Mutex
	pending map[*session][]string
	wake    chan struct{} // cap 1
}

func newAcker() *acker {
	return &acker{pending: map[*session][]string{}, wake: make(chan struct{}, 1)}
}

// add says that the report for a command is stored.
func (k *acker) add(s *session, command string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending[s] = append(k.pending[s], command)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *acker) take() map[*session][]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	pending := k.pending
	k.pending = map[*session][]string{}
	return pending
}

func (k *acker) run(ctx context.Context) error {
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return nil
		}
		pause(ctx, ackDelay)
		for s, ids := range k.take() {
			for part := range slices.Chunk(ids, 1000) {
				f, err := bus.Seal(nil, &musterv1.TargetAck{CommandIds: part})
				if err == nil {
					quiet(s.peer.SendFrames(f)) // lost, the report comes again
				}
			}
		}
	}
}
