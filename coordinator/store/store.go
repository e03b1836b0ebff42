package store

import (
	"bytes"
	"context"
	"errors"
)

// Space is a named part of the store with a key order of its own. Spaces are
// declared when the store is opened.
type Space string

// SpaceDef declares a space. Only a Watched space can be watched.
type SpaceDef struct {
	Name    Space
	Watched bool
}

// Rev names one version of one key. In a watched space revs also give the
// order of commits. The zero Rev means absent.
type Rev uint64

// KV is a key with its value. Both are copies that the caller may keep.
type KV struct {
	Key, Value []byte
	Rev        Rev // 0: absent
}

// Kind says what an Op does.
type Kind uint8

const (
	Put         Kind = iota // writes the value if If holds
	PutIfAbsent             // writes unless the key exists; then the op is skipped and the batch goes on: the first write wins
	Delete                  // removes the key if If holds; an absent key is no error
)

// Cond is a condition on a key; the zero Cond always holds.
type Cond struct {
	kind condKind
	rev  Rev
}

type condKind uint8

const (
	condAny condKind = iota
	condAbsent
	condAtRev
)

// Absent holds when the key does not exist.
func Absent() Cond { return Cond{condAbsent, 0} }

// AtRev holds when the key exists at revision r.
func AtRev(r Rev) Cond { return Cond{condAtRev, r} }

// Holds reports whether the condition is met by a key at rev (0: absent).
func (c Cond) Holds(rev Rev) bool {
	switch c.kind {
	case condAbsent:
		return rev == 0
	case condAtRev:
		return rev == c.rev && rev != 0
	default:
		return true
	}
}

// Op is one change.
type Op struct {
	Kind       Kind
	Space      Space
	Key, Value []byte
	If         Cond
}

// Batch is applied whole or not at all. Its keys are distinct.
type Batch struct {
	Ops []Op
}

// Result of a Commit.
type Result struct {
	Rev     Rev   // of the watched part; 0: nothing watched changed
	Skipped []int // indexes of PutIfAbsent ops whose key existed
}

// Range selects keys of a space.
type Range struct {
	Prefix  []byte
	After   []byte // exclusive, in the direction of the scan: the cursor is the last key seen
	Limit   int    // 0: the engine's own page size, 1,000
	Reverse bool
}

// Page is one answer to Scan.
type Page struct {
	Items []KV
	More  bool
	Rev   Rev // watch from here: nothing committed after this page's read is missed
}

// Event is one change of a key.
type Event struct {
	KV
	Deleted bool
}

// Errors that callers branch on; they come wrapped.
var (
	ErrConflict    = errors.New("store: condition failed, nothing applied")
	ErrCompacted   = errors.New("store: watch position is gone, scan again")
	ErrUnavailable = errors.New("store: engine unavailable, nothing applied")
	ErrUnknown     = errors.New("store: outcome unknown, read again and decide")
	ErrInvalid     = errors.New("store: invalid request")
)

// Store keeps rows. Its methods may be called concurrently.
type Store interface {
	// Get returns one KV per key, in order; an absent key has Rev 0.
	Get(ctx context.Context, s Space, keys ...[]byte) ([]KV, error)
	// Scan returns rows in bytewise key order, or the reverse. A page ends at
	// the range's limit, or once its rows have passed MaxPage bytes: ask More.
	Scan(ctx context.Context, s Space, r Range) (Page, error)
	// Commit applies the batch, all or nothing; it is durable when Commit
	// returns, and the caller may then reuse its slices. One failed condition
	// fails it with ErrConflict. ErrUnknown means that it may have been applied;
	// a ctx that ends gives ctx's error alone when nothing was.
	Commit(ctx context.Context, b Batch) (Result, error)
	// Watch sends the changes under prefix committed after the given revision,
	// a commit's together, in key order, and in commit order. Readers share the
	// slices and must not write to them. The channel is closed when ctx ends,
	// when the store closes, or when the reader is too slow: then scan again and
	// watch from the page's Rev. It fails with ErrCompacted when the changes
	// after that revision are no longer held, or when the store has not come to
	// it (a file put back from a copy).
	Watch(ctx context.Context, s Space, prefix []byte, after Rev) (<-chan []Event, error)
	// DropBefore removes every key smaller than key. It may do so a part at a
	// time and need not be atomic; watchers are not told.
	DropBefore(ctx context.Context, s Space, key []byte) error
	// Close waits for the commits under way, ends the watches and lets go of
	// the engine. Every later call fails with ErrUnavailable; a second Close
	// does nothing.
	Close() error
}

// Limits that hold on every engine.
const (
	MaxKey   = 256
	MaxValue = 256 << 10
	MaxOps   = 1000
	MaxBytes = 1 << 20
	MaxPage  = 4 << 20 // a page of Scan ends with the row that passes it
)

// Check returns ErrInvalid, with the reason, for a batch over the limits or
// with one key twice.
func (b Batch) Check() error {
	_, err := b.sorted()
	return err
}

// End returns the first key after every key with the prefix; nil: there is none.
func End(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			e := bytes.Clone(prefix[:i+1])
			e[i]++
			return e
		}
	}
	return nil
}
