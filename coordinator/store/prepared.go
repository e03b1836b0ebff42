package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Spaces says of each declared space whether it is watched.
type Spaces map[Space]bool

// Declare makes Spaces of definitions.
func Declare(defs ...SpaceDef) Spaces {
	spaces := make(Spaces, len(defs))
	for _, d := range defs {
		spaces[d.Name] = spaces[d.Name] || d.Watched
	}
	return spaces
}

// Check returns ErrInvalid when s is not declared.
func (spaces Spaces) Check(s Space) error {
	if _, ok := spaces[s]; !ok {
		return fmt.Errorf("%w: space %q is not declared", ErrInvalid, s)
	}
	return nil
}

// Table is one space inside an engine's transaction, a *bbolt.Bucket for one.
// It holds records: the row's rev in revSize bytes, then the row's value.
type Table interface {
	Get(key []byte) []byte // nil: absent; good until the next write
	Put(key, record []byte) error
	Delete(key []byte) error
}

// revSize is how much of a record its rev takes.
const revSize = 8

// revOf returns the rev of a record; nil, an absent row, has rev 0.
func revOf(record []byte) Rev {
	if len(record) < revSize {
		return 0
	}
	return Rev(binary.BigEndian.Uint64(record))
}

// Prepared is a checked copy of a batch in order of space and key, which is the
// order that suits a B+tree and lets watchers share slices.
type Prepared struct {
	ops  []preparedOp
	size int
}

// Size is how many bytes its keys and records have.
func (p *Prepared) Size() int { return p.size }

type preparedOp struct {
	kind    Kind
	space   Space
	watched bool
	key     []byte
	record  []byte // the rev is filled in by Apply
	cond    Cond
	index   int // in the batch
}

// Prepare checks the batch and copies it, so that its owner may scribble on it
// while the engine still works.
func (b Batch) Prepare(spaces Spaces) (*Prepared, error) {
	order, err := b.sorted()
	if err != nil {
		return nil, err
	}
	// Watched rows have a memory of their own: the fan-out holds on to it.
	size := map[bool]int{}
	for _, o := range b.Ops {
		if err := spaces.Check(o.Space); err != nil {
			return nil, err
		}
		size[spaces[o.Space]] += len(o.Key) + revSize + len(o.Value)
	}
	room := map[bool][]byte{false: make([]byte, size[false]), true: make([]byte, size[true])}
	p := &Prepared{make([]preparedOp, len(order)), size[false] + size[true]}
	for i, index := range order {
		o := b.Ops[index]
		watched := spaces[o.Space]
		k, n := len(o.Key), len(o.Key)+revSize+len(o.Value)
		mem := room[watched][:n:n]
		room[watched] = room[watched][n:]
		copy(mem, o.Key)
		copy(mem[k+revSize:], o.Value)
		p.ops[i] = preparedOp{o.Kind, o.Space, watched, mem[:k:k], mem[k:], o.If, index}
	}
	return p, nil
}

// sorted returns the indexes of the ops in order of space and key.
func (b Batch) sorted() ([]int, error) {
	if len(b.Ops) > MaxOps {
		return nil, fmt.Errorf("%w: %d ops, at most %d", ErrInvalid, len(b.Ops), MaxOps)
	}
	order := make([]int, len(b.Ops))
	n := 0
	for i, o := range b.Ops {
		order[i] = i
		switch {
		case o.Kind > Delete:
			return nil, fmt.Errorf("%w: key %q: unknown kind of op %d", ErrInvalid, o.Key, o.Kind)
		case len(o.Key) == 0 || len(o.Key) > MaxKey:
			return nil, fmt.Errorf("%w: key of %d bytes, want 1 to %d", ErrInvalid, len(o.Key), MaxKey)
		case len(o.Value) > MaxValue:
			return nil, fmt.Errorf("%w: key %q: value of %d bytes, at most %d", ErrInvalid, o.Key, len(o.Value), MaxValue)
		}
		n += len(o.Key) + len(o.Value)
	}
	if n > MaxBytes {
		return nil, fmt.Errorf("%w: batch of %d bytes, at most %d", ErrInvalid, n, MaxBytes)
	}
	compare := func(i, j int) int {
		a, b := &b.Ops[i], &b.Ops[j]
		return cmp.Or(strings.Compare(string(a.Space), string(b.Space)), bytes.Compare(a.Key, b.Key))
	}
	slices.SortFunc(order, compare)
	for i := 1; i < len(order); i++ {
		if compare(order[i-1], order[i]) == 0 {
			return nil, fmt.Errorf("%w: key %q twice in a batch", ErrInvalid, b.Ops[order[i]].Key)
		}
	}
	return order, nil
}

// Change is what one commit did to one watched space, in key order.
type Change struct {
	Space  Space
	Rev    Rev
	Events []Event
}

// Applied is what a batch did.
type Applied struct {
	Result
	Changes []Change
	Wrote   bool // some row changed: the rev is used up
}

// Apply does the batch at rev. ErrConflict leaves the tables as they were; any
// other error is a table's own, and the engine must undo its transaction. Apply
// may be called again in another transaction.
func (p *Prepared) Apply(rev Rev, table func(Space) Table) (Applied, error) {
	var a Applied
	todo, err := p.check(&a, table)
	if err != nil {
		return Applied{}, err
	}
	a.Wrote = len(todo) > 0
	events := make([]Event, 0, len(todo))
	first := 0 // of the events of the space at hand
	for i, op := range todo {
		t := table(op.space)
		e := Event{KV: KV{Key: op.key, Rev: rev}, Deleted: op.kind == Delete}
		if e.Deleted {
			err = t.Delete(op.key)
		} else {
			binary.BigEndian.PutUint64(op.record, uint64(rev))
			e.Value = op.record[revSize:]
			err = t.Put(op.key, op.record)
		}
		if err != nil {
			return Applied{}, fmt.Errorf("space %q, key %q: %w", op.space, op.key, err)
		}
		if !op.watched {
			continue
		}
		a.Rev = rev
		events = append(events, e)
		if i+1 == len(todo) || todo[i+1].space != op.space {
			a.Changes = append(a.Changes, Change{op.space, rev, events[first:len(events):len(events)]})
			first = len(events)
		}
	}
	return a, nil
}

// check returns the ops that will write, or ErrConflict.
func (p *Prepared) check(a *Applied, table func(Space) Table) ([]*preparedOp, error) {
	todo := make([]*preparedOp, 0, len(p.ops))
	for i := range p.ops {
		op := &p.ops[i]
		if op.kind == Put && op.cond.kind == condAny {
			todo = append(todo, op)
			continue
		}
		now := revOf(table(op.space).Get(op.key))
		switch {
		case op.kind == PutIfAbsent && now != 0:
			a.Skipped = append(a.Skipped, op.index)
		case op.kind != PutIfAbsent && !op.cond.Holds(now):
			return nil, fmt.Errorf("%w: key %q is at revision %d", ErrConflict, op.key, now)
		case op.kind == Delete && now == 0: // nothing to do
		default:
			todo = append(todo, op)
		}
	}
	slices.Sort(a.Skipped)
	return todo, nil
}
