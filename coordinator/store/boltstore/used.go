package boltstore

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
)

// errOverwritten is a meta page that made room for a later commit's.
var errOverwritten = errors.New("commits come too fast to tell how much of it is used")

// Used returns how many bytes of the file hold something: what retention has
// freed does not count, though the file keeps its size. It reads two pages.
func (s *Store) Used() (bytes int64, err error) {
	for range 5 { // two commits must end between two reads for one to be in vain
		if err = s.view(func(tx *bbolt.Tx) error {
			bytes, err = s.usedIn(tx)
			return err
		}); err == nil {
			return bytes, nil
		}
	}
	return 0, fmt.Errorf("%w: store file %s: %w", store.ErrUnavailable, s.path, err)
}

// usedIn is Used for the commit that tx sees; while it lasts, that commit's
// freelist is not written over, but its meta page may be.
func (s *Store) usedIn(tx *bbolt.Tx) (int64, error) {
	size, change := int64(tx.DB().Info().PageSize), uint64(tx.ID())
	m, err := readMeta(s.file, int64(change%2)*size)
	if err != nil {
		return 0, err
	}
	if m.change != change {
		return 0, errOverwritten
	}
	list, err := readFreelist(s.file, m)
	if err != nil {
		return 0, err
	}
	return int64(m.highWater-list.count) * size, nil
}
