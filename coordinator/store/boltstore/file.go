package boltstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// newSuffix names the file under which a new store is built. It gets its own
// name when it is whole, so that a crash leaves no half-made store.
const newSuffix = ".new"

const lockRetry = 50 * time.Millisecond

// offlineWait is how long the offline functions wait for the lock: whoever has
// it will not let go soon.
const offlineWait = 200 * time.Millisecond

// openFile opens the store file and takes its lock. When there is none it does
// so with an empty one under the name for building; publishFile names it.
func openFile(path string, opts Options) (f *os.File, created bool, err error) {
	deadline := time.Now().Add(opts.LockWait)
	for {
		name := path
		f, err = os.OpenFile(name, os.O_RDWR, 0)
		created = errors.Is(err, os.ErrNotExist)
		if created && !opts.Existing {
			name += newSuffix
			f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		}
		if err != nil {
			return nil, false, err
		}
		if err = lock(f, deadline, opts); err == nil && created {
			err = f.Truncate(0) // what a crash has left
		}
		if err != nil {
			f.Close()
			return nil, false, err
		}
		if isStill(f, name) && (!created || !exists(path)) {
			return f, created, nil
		}
		// Another process made, named or replaced the file while this one waited.
		if created && isStill(f, name) {
			os.Remove(name)
		}
		f.Close()
	}
}

// publishFile gives the built file its name. Its lock goes with it.
func publishFile(path string) error { return rename(path+newSuffix, path) }

// rename gives a file its name for good.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func isStill(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// lock takes the lock that bbolt takes too. bbolt then finds it held by the
// same open file, so there is no moment without it between check and use.
func lock(f *os.File, deadline time.Time, opts Options) error {
	told := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cannot be locked: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("locked by another process for %s: is another coordinator running on this data folder?", opts.LockWait)
		}
		if !told {
			told = true
			opts.Log.Info("store file is locked, waiting", "path", f.Name(), "wait", opts.LockWait)
		}
		time.Sleep(lockRetry)
	}
}

// openOffline opens a file that must be there and takes its lock.
func openOffline(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, fmt.Errorf("store file: %w", err)
	}
	if err := lock(f, time.Now().Add(offlineWait), Options{LockWait: offlineWait, Log: slog.New(slog.DiscardHandler)}); err != nil {
		f.Close()
		return nil, fmt.Errorf("store file %s: %w", path, err)
	}
	return f, nil
}

// unlock lets go at once; a mapping that bbolt left behind after a fault would
// else keep the lock until the process ends.
func unlock(f *os.File) {
	if fd := int(f.Fd()); fd >= 0 {
		_ = unix.Flock(fd, unix.LOCK_UN)
	}
}
