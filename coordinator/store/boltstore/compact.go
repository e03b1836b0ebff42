package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"go.etcd.io/bbolt"

	"github.com/musterhq/muster/coordinator/store"
)

const (
	compactSuffix = ".compact" // the new file while it is made
	oldSuffix     = ".old"     // the file as it was before
	copiedAtOnce  = 8 << 20    // bytes that one transaction of the copy writes
)

// Compaction says what Compact has done.
type Compaction struct {
	Path   string `json:"path"`
	Before int64  `json:"before"` // bytes of the file
	After  int64  `json:"after"`
	Old    string `json:"old,omitempty"` // the file as it was, if it was kept
}

// Compact writes the rows of a store file that no coordinator has open into a
// new file without free pages, checks that it has them all, and puts it in the
// place of the old one, which it keeps as PATH.old unless discardOld. Until then
// the old file is not touched, and there is a whole one at every moment. A
// damaged file is refused: a copy would hide what it has lost.
func Compact(ctx context.Context, path string, discardOld bool) (*Compaction, error) {
	f, err := openOffline(path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer f.Close() // and the lock: not before the new file has its name
	c, err := compact(ctx, f, discardOld)
	if err != nil {
		return nil, fmt.Errorf("store file %s: not compacted: %w", path, err)
	}
	return c, nil
}

func compact(ctx context.Context, f *os.File, discardOld bool) (c *Compaction, err error) {
	path := f.Name()
	c = &Compaction{Path: path}
	if !discardOld {
		c.Old = path + oldSuffix
		if exists(c.Old) && !isStill(f, c.Old) { // the same file: an earlier try was cut short
			return nil, fmt.Errorf("%s is there already: move it away first", c.Old)
		}
	}
	temporary := path + compactSuffix
	defer func() {
		if err != nil {
			os.Remove(temporary)
		}
	}()
	before, err := copyRows(ctx, f, temporary)
	if err != nil {
		return nil, err
	}
	if c.Before = before.Size; !before.Sound() {
		return nil, fmt.Errorf("it is damaged: %s", before.Faults[0])
	}
	if c.After, err = finish(ctx, f, temporary, before); err != nil {
		return nil, err
	}
	if c.Old != "" {
		if err := os.Link(path, c.Old); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return c, rename(temporary, path)
}

// copyRows walks the file and writes its rows to a new one.
func copyRows(ctx context.Context, f *os.File, to string) (*Report, error) {
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w := newWalk(f)
	db, err := bbolt.Open(to, 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true, NoStatistics: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	dst := &copier{db: db}
	defer dst.close()
	w.row = func(space store.Space, kv store.KV, record []byte) error {
		return dst.put(bucketOf(space), kv.Key, record)
	}
	if err := w.run(ctx); err != nil || !w.report.Sound() {
		return w.report, err
	}
	for _, s := range w.report.Spaces { // also those without rows
		if err := dst.bucket(bucketOf(s.Name)); err != nil {
			return nil, err
		}
	}
	if err := dst.put(ownBucket, formatKey, format); err != nil {
		return nil, err
	}
	if err := dst.tx.Bucket(ownBucket).SetSequence(uint64(w.report.Rev)); err != nil {
		return nil, err
	}
	return w.report, dst.commit()
}

// copier writes rows in their order, in transactions of a bearable size.
type copier struct {
	db   *bbolt.DB
	tx   *bbolt.Tx
	size int
}

func (c *copier) put(bucket, key, record []byte) error {
	if c.size > copiedAtOnce {
		if err := c.commit(); err != nil {
			return err
		}
	}
	if err := c.bucket(bucket); err != nil {
		return err
	}
	c.size += len(key) + len(record)
	b := c.tx.Bucket(bucket)
	b.FillPercent = 1 // rows come in order: leave no page half empty
	return b.Put(key, record)
}

func (c *copier) bucket(name []byte) (err error) {
	if c.tx == nil {
		if c.tx, err = c.db.Begin(true); err != nil {
			return err
		}
	}
	_, err = c.tx.CreateBucketIfNotExists(name)
	return err
}

func (c *copier) commit() error {
	tx := c.tx
	c.tx, c.size = nil, 0
	return tx.Commit()
}

func (c *copier) close() {
	if c.tx != nil {
		_ = c.tx.Rollback() // the file is thrown away
	}
	_ = c.db.Close()
}

// finish checks the new file against what the old one holds, gives it the old
// one's mode and owner, and makes it durable.
func finish(ctx context.Context, old *os.File, path string, want *Report) (size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := newWalk(f)
	if err := w.run(ctx); err != nil {
		return 0, err
	}
	if !w.report.Sound() {
		return 0, fmt.Errorf("the new file is damaged: %s", w.report.Faults[0])
	}
	if !w.report.same(want) {
		return 0, errors.New("the new file has other rows than the old one")
	}
	info, err := old.Stat()
	if err != nil {
		return 0, err
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		return 0, err
	}
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid() {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return 0, err
		}
	}
	return w.report.Size, f.Sync()
}
