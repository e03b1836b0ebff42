package boltstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
)

// Options of Open.
type Options struct {
	// LockWait is how long Open waits while another process has the file; 0: 5 s.
	LockWait time.Duration
	// Existing makes Open fail where there is no file.
	Existing bool
	// Log hears of a new file and of a wait for the lock; nil: nobody does.
	Log *slog.Logger
}

// Store is a store.Store in one file.
type Store struct {
	path    string
	spaces  store.Spaces
	fan     *store.Fanout
	created bool
	size    int64 // of the file at Open; it only grows

	file *os.File // bbolt's own: it carries the lock
	db   *bbolt.DB

	reading sync.RWMutex          // held by readers for the length of a transaction
	broken  atomic.Pointer[error] // set when bbolt can no longer be entered

	// The committer's own.
	rev       store.Rev // of the last commit
	unsettled bool      // see settle
	update    func(func(*bbolt.Tx) error) (id int, err error)
	sync      func() error

	mu        sync.RWMutex // held for reading by who puts into queue
	closed    bool
	queue     chan *request
	committed chan struct{} // closed when the committer has ended
}

var _ store.Store = (*Store)(nil)

// Open opens the file, or makes it if there is none; see Created. It holds the
// file's lock until Close. Spaces that the file does not have are added.
func Open(path string, opts Options, spaces ...store.SpaceDef) (*Store, error) {
	if opts.LockWait == 0 {
		opts.LockWait = 5 * time.Second
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	file, created, err := openFile(path, opts)
	if err != nil {
		return nil, fmt.Errorf("store file %s: %w", path, err)
	}
	s := &Store{
		path: path, spaces: store.Declare(spaces...), created: created, file: file, sync: file.Sync,
		queue: make(chan *request, 256), committed: make(chan struct{}),
	}
	s.update = s.updateBolt
	if err := s.start(); err != nil {
		s.release()
		if created {
			os.Remove(path + newSuffix)
		}
		return nil, fmt.Errorf("store file %s: %w", path, err)
	}
	if created {
		opts.Log.Warn("there was no store file: made a new one, the history starts empty", "path", path)
	}
	s.fan = store.NewFanout(s.spaces, s.rev)
	go s.commitLoop()
	return s, nil
}

// start checks and opens the file that s holds the lock of.
func (s *Store) start() error {
	if !s.created {
		if _, err := checkFile(s.file); err != nil {
			return wayOut(err)
		}
	}
	err := s.openBolt()
	if err == nil {
		err = s.declare()
	}
	if f := (*fault)(nil); errors.As(err, &f) {
		return wayOut(err)
	}
	if err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	s.size = info.Size()
	if s.created {
		return publishFile(s.path)
	}
	return nil
}

// wayOut says what to do about a damaged file.
func wayOut(err error) error {
	return fmt.Errorf("%w; put a copy of the file back, or move it away to start with an empty history", err)
}

// Created reports whether Open made the file: what was known before is gone.
func (s *Store) Created() bool { return s.created }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, space store.Space, keys ...[]byte) (kvs []store.KV, err error) {
	err = s.viewSpace(ctx, space, func(tx *bbolt.Tx, b *bbolt.Bucket) error {
		kvs, err = store.ReadKeys(b, keys)
		return err
	})
	if err != nil {
		return nil, err
	}
	return kvs, nil
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, space store.Space, r store.Range) (p store.Page, err error) {
	err = s.viewSpace(ctx, space, func(tx *bbolt.Tx, b *bbolt.Bucket) error {
		p, err = store.ReadPage(b.Cursor(), r, revIn(tx))
		return err
	})
	if err != nil {
		return store.Page{}, err
	}
	return p, nil
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, space store.Space, prefix []byte, after store.Rev) (<-chan []store.Event, error) {
	var rev store.Rev
	err := s.viewSpace(ctx, space, func(tx *bbolt.Tx, _ *bbolt.Bucket) error {
		rev = revIn(tx)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if after > rev {
		return nil, fmt.Errorf("%w: revision %d, the store is at %d", store.ErrCompacted, after, rev)
	}
	return s.fan.Watch(ctx, space, prefix, after)
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.queue)
	}
	s.mu.Unlock()
	<-s.committed
	s.fan.Close()
	return s.release()
}

// release closes bbolt, waiting for its readers, and lets go of the lock.
func (s *Store) release() error {
	var err error
	if s.db != nil && s.broken.Load() == nil { // a broken one may never come back from Close
		err = s.db.Close()
	}
	unlock(s.file)
	if cerr := s.file.Close(); cerr != nil && !errors.Is(cerr, os.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}
