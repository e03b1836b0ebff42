package bus

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// freeBytes of a message under way cost nothing of the budget.
const freeBytes = 4 << 10

// budget bounds the bytes of all messages under way together; who finds it
// spent waits for his turn. A message takes its part once, before it is read
// beyond freeBytes, and so nobody waits who holds something. Peers that are not
// registered have an eighth of it to themselves: they cannot make the
// registered ones wait.
type budget struct {
	registered, strangers *semaphore.Weighted
}

func newBudget(cfg Config) *budget {
	strangers := max(cfg.ReceiveBudget/8, int64(cfg.MaxUnregistered))
	registered := max(cfg.ReceiveBudget-strangers, int64(cfg.MaxMessage))
	return &budget{registered: semaphore.NewWeighted(registered), strangers: semaphore.NewWeighted(strangers)}
}

// reserve waits until n bytes for a message of p are free. It fails when ctx or the
// link ends.
func (b *budget) reserve(ctx context.Context, p *Peer, n int64) (free func(), err error) {
	from := b.registered
	if p.router && p.promoted.Load() == 0 {
		from = b.strangers
	}
	free = func() { from.Release(n) }
	if from.TryAcquire(n) {
		return free, nil
	}
	p.bus.metrics.waits.Inc()
	p.out.uncork()
	ctx, cancel := p.untilEnd(ctx)
	defer cancel()
	if err := from.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return free, nil
}
