package coordinator

import (
	"context"
	"sync"

	"github.com/musterhq/muster/coordinator/store"
)

// position is how far a follower has come with the commits of its space, and
// lets others wait for it. Make one with newPosition.
type position struct {
	mu      sync.Mutex
	applied store.Rev
	moved   chan struct{} // closed and replaced when applied moves
}

func newPosition() *position { return &position{moved: make(chan struct{})} }

// reach notes that everything committed up to rev is applied.
func (p *position) reach(rev store.Rev) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rev > p.applied {
		p.applied = rev
		close(p.moved)
		p.moved = make(chan struct{})
	}
}

// reached returns nil when rev is applied, else the channel to wait on.
func (p *position) reached(rev store.Rev) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.applied >= rev {
		return nil
	}
	return p.moved
}

// next returns the channel that is closed when another commit is applied.
func (p *position) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// await waits until a commit is applied, so that whoever made it finds its
// effect at once.
func (p *position) await(ctx context.Context, rev store.Rev) error {
	for {
		moved := p.reached(rev)
		if moved == nil {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
