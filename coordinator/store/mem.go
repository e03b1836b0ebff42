package store

import (
	"context"
	"fmt"
	"sync"
)

// Mem is a Store in memory, for tests and for what need not last.
type Mem struct {
	spaces Spaces
	fan    *Fanout

	mu     sync.RWMutex
	rev    Rev
	rows   map[Space]*rows
	closed bool
}

var _ Store = (*Mem)(nil)

// NewMem returns an empty store with the spaces.
func NewMem(spaces ...SpaceDef) *Mem {
	declared := Declare(spaces...)
	m := &Mem{spaces: declared, fan: NewFanout(declared, 0), rows: map[Space]*rows{}}
	for s := range declared {
		m.rows[s] = &rows{}
	}
	return m
}

// Get implements Store.
func (m *Mem) Get(ctx context.Context, s Space, keys ...[]byte) ([]KV, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(ctx, s); err != nil {
		return nil, err
	}
	return ReadKeys(m.rows[s], keys)
}

// Scan implements Store.
func (m *Mem) Scan(ctx context.Context, s Space, r Range) (Page, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(ctx, s); err != nil {
		return Page{}, err
	}
	return ReadPage(m.rows[s].cursor(), r, m.rev)
}

// Commit implements Store.
func (m *Mem) Commit(ctx context.Context, b Batch) (Result, error) {
	p, err := b.Prepare(m.spaces)
	if err != nil {
		return Result{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.openLocked(ctx); err != nil {
		return Result{}, err
	}
	a, err := p.Apply(m.rev+1, func(s Space) Table { return m.rows[s] })
	if err != nil {
		return Result{}, err
	}
	if a.Wrote {
		m.rev++
	}
	m.fan.Publish(a.Changes) // under the lock: in commit order
	return a.Result, nil
}

// Watch implements Store.
func (m *Mem) Watch(ctx context.Context, s Space, prefix []byte, after Rev) (<-chan []Event, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(ctx, s); err != nil {
		return nil, err
	}
	if after > m.rev {
		return nil, fmt.Errorf("%w: revision %d, the store is at %d", ErrCompacted, after, m.rev)
	}
	return m.fan.Watch(ctx, s, prefix, after)
}

// DropBefore implements Store.
func (m *Mem) DropBefore(ctx context.Context, s Space, key []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx, s); err != nil {
		return err
	}
	m.rows[s].dropBefore(key)
	return nil
}

// Close implements Store.
func (m *Mem) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.fan.Close()
	return nil
}

func (m *Mem) usableLocked(ctx context.Context, s Space) error {
	if err := m.spaces.Check(s); err != nil {
		return err
	}
	return m.openLocked(ctx)
}

func (m *Mem) openLocked(ctx context.Context) error {
	if m.closed {
		return fmt.Errorf("%w: the store is closed", ErrUnavailable)
	}
	return ctx.Err()
}
