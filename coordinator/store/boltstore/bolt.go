package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/musterhq/muster/coordinator/store"
)

// The bucket that says whose file this is.
var (
	ownBucket = []byte("muster")
	formatKey = []byte("format")
	format    = []byte("1")
)

func bucketOf(s store.Space) []byte { return append([]byte("rows/"), s...) }

// revIn returns the revision of the last commit that tx sees.
func revIn(tx *bbolt.Tx) store.Rev { return store.Rev(tx.Bucket(ownBucket).Sequence()) }

// fault is what bbolt did instead of returning: it met a page that it cannot
// read. bbolt panics on what it notices; the rest is a fault of the mapped
// memory, a panic too while the goroutine has SetPanicOnFault.
type fault struct{ cause any }

func (f *fault) Error() string { return fmt.Sprintf("damaged page: %v", f.cause) }

// openBolt opens bbolt on the file that is locked and checked already.
func (s *Store) openBolt() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &fault{p}
		}
	}()
	s.db, err = bbolt.Open(s.path, 0o600, &bbolt.Options{
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return s.file, nil },
		FreelistType: bbolt.FreelistMapType,
		NoStatistics: true,
	})
	return err
}

// declare checks the sentinel, adds the spaces that are missing and reads the
// last revision.
func (s *Store) declare() error {
	missing := s.created
	err := s.view(func(tx *bbolt.Tx) error {
		if s.created {
			return nil
		}
		own := tx.Bucket(ownBucket)
		if own == nil {
			return wayOut(errors.New("is not a coordinator's store"))
		}
		if f := own.Get(formatKey); string(f) != string(format) {
			return fmt.Errorf("has format %q, this program knows %q: it was written by another version", f, format)
		}
		s.rev = revIn(tx)
		for space := range s.spaces {
			missing = missing || tx.Bucket(bucketOf(space)) == nil
		}
		return nil
	})
	if err != nil || !missing {
		return err
	}
	_, err = s.update(func(tx *bbolt.Tx) error {
		own, err := tx.CreateBucketIfNotExists(ownBucket)
		if err != nil {
			return err
		}
		for space := range s.spaces {
			if _, err := tx.CreateBucketIfNotExists(bucketOf(space)); err != nil {
				return err
			}
		}
		return own.Put(formatKey, format)
	})
	return err
}

// viewSpace is view with the bucket of a space.
func (s *Store) viewSpace(ctx context.Context, space store.Space, fn func(*bbolt.Tx, *bbolt.Bucket) error) error {
	if err := s.spaces.Check(space); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.view(func(tx *bbolt.Tx) error { return fn(tx, tx.Bucket(bucketOf(space))) })
	switch {
	case err == nil || errors.Is(err, store.ErrInvalid):
		return err
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return fmt.Errorf("%w: the store is closed", store.ErrUnavailable)
	default:
		return fmt.Errorf("%w: store file %s, space %q: %w", store.ErrUnavailable, s.path, space, err)
	}
}

// view runs fn in a read transaction. A fault is an error.
func (s *Store) view(fn func(*bbolt.Tx) error) (err error) {
	if err := s.enter(); err != nil {
		return err
	}
	s.reading.RLock()
	defer s.reading.RUnlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	began := false
	defer func() {
		if p := recover(); p != nil {
			err = &fault{p}
			if !began {
				s.breakOff(err)
			}
		}
	}()
	return s.db.View(func(tx *bbolt.Tx) error {
		began = true
		return fn(tx)
	})
}

// updateBolt runs fn in a write transaction and commits it, unless fn fails. A
// fault is an error and rolls back. It returns the transaction's number.
func (s *Store) updateBolt(fn func(*bbolt.Tx) error) (id int, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var tx *bbolt.Tx
	defer func() {
		if p := recover(); p != nil {
			err = &fault{p}
			if tx == nil || tx.DB() != nil { // it faulted in beginning, or again in rolling back
				s.breakOff(err)
			}
		}
	}()
	err = s.db.Update(func(t *bbolt.Tx) error {
		tx, id = t, t.ID()
		return fn(t)
	})
	return id, err
}

// enter refuses what would fault inside bbolt's own locks, or wait for them.
func (s *Store) enter() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	if info, err := s.file.Stat(); err == nil && info.Size() < s.size {
		return fmt.Errorf("cut short while in use: %d bytes of %d", info.Size(), s.size)
	}
	return nil
}

// breakOff ends the use of bbolt: a fault has left one of its locks held.
func (s *Store) breakOff(err error) {
	err = fmt.Errorf("%w; restart the coordinator", err)
	s.broken.CompareAndSwap(nil, &err)
}
