package agentd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// place is where the file of a config is: a folder below the config root, and a
// name in it. The folder is held open, and all work is done by names without a
// slash in it, so nobody who moves links about leads it elsewhere. No part of
// the way and no target may be a link.
//
// Beside its target a config has hidden files while it is applied: the staged
// one, which after the swap is the one that was there before, and what was taken
// away. Their names are made of the config's, so a later attempt finds what an
// earlier one left.
type place struct {
	dir    *os.Root
	handle *os.File // of dir
	file   string   // the target for programs: absolute
	base   string
	staged string
	aside  string // what was there, for a moment
	gone   string // what was taken out of its place

	noExchange bool // the file system cannot exchange or keep names: for tests
}

// hiddenPrefix begins the names of files that are only there for a while.
const hiddenPrefix = ".muster-"

var (
	errLink    = errors.New("it is a symbolic link")
	errNotFile = errors.New("it is no regular file")
	errRaced   = errors.New("somebody else changed it meanwhile")
)

// openPlace walks from the root to the folder of a path.
func openPlace(root, file string, key configKey) (*place, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("config root: %w", err)
	}
	parts := strings.Split(file, "/")
	for i, part := range parts[:len(parts)-1] {
		next, err := descend(dir, part)
		dir.Close()
		if err != nil {
			return nil, fmt.Errorf("folder %s: %w", filepath.Join(root, path.Join(parts[:i+1]...)), bare(err))
		}
		dir = next
	}
	handle, err := dir.Open(".")
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("folder of %s: %w", file, bare(err))
	}
	base := parts[len(parts)-1]
	p := &place{dir: dir, handle: handle, file: filepath.Join(root, file), base: base}
	ending := path.Ext(base) // some programs judge a file by it
	if len(ending) > 64 {
		ending = ""
	}
	p.staged = hiddenPrefix + key.file() + ".new" + ending
	p.aside = hiddenPrefix + key.file() + ".old"
	p.gone = hiddenPrefix + key.file() + ".gone"
	return p, nil
}

// descend opens a folder in a folder, which is not a link.
func descend(dir *os.Root, name string) (*os.Root, error) {
	before, err := dir.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case before.Mode()&fs.ModeSymlink != 0:
		return nil, errLink
	case !before.IsDir():
		return nil, syscall.ENOTDIR
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if after, err := next.Lstat("."); err != nil || !os.SameFile(before, after) {
		next.Close()
		return nil, errRaced
	}
	return next, nil
}

func (p *place) close() {
	p.handle.Close()
	p.dir.Close()
}

// beside is the whole name of a file of the folder.
func (p *place) beside(name string) string { return filepath.Join(filepath.Dir(p.file), name) }

// look returns what is at the target: nil for nothing, an error for what may not
// be replaced, or not be read: what cannot be compared cannot be put back.
func (p *place) look() (fs.FileInfo, error) {
	info, err := p.dir.Lstat(p.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, p.fault("", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, p.fault("", errLink)
	case !info.Mode().IsRegular():
		return nil, p.fault("", errNotFile)
	}
	f, err := p.open(p.base)
	if err != nil {
		return nil, p.fault("read", err)
	}
	return info, f.Close()
}

// open opens a regular file of the folder that is not a link. It never waits for
// the other end of a pipe.
func (p *place) open(name string) (*os.File, error) {
	before, err := p.dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errNotFile
	}
	f, err := p.dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if after, err := f.Stat(); err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, errRaced
	}
	return f, nil
}

// hash is the SHA-256 of a file, hex; "" of what is not there or cannot be read.
func (p *place) hash(name string) string {
	sha, _ := p.read(name)
	return sha
}

func (p *place) read(name string) (sha string, err error) {
	f, err := p.open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// intact checks that the staged file is as it was staged.
func (p *place) intact(sha string) error {
	got, err := p.read(p.staged)
	if err == nil && got != sha {
		err = errors.New("check_cmd changed the staged file")
	}
	return p.fault("stage", err)
}

// snapshot is a target as it was.
type snapshot struct {
	info  fs.FileInfo // nil: nothing was there
	sha   string
	bytes []byte
	whole bool // bytes is all of it
}

// snapshot reads the target, and remembers its content if it is no larger than
// that of a config.
func (p *place) snapshot(was fs.FileInfo) (s snapshot, err error) {
	if was == nil {
		return s, nil
	}
	f, err := p.open(p.base)
	if err != nil {
		return s, p.fault("read", err)
	}
	defer f.Close()
	sum := sha256.New()
	head, err := io.ReadAll(io.TeeReader(io.LimitReader(f, maxConfigSize+1), sum))
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if err != nil {
		return s, p.fault("read", err)
	}
	s = snapshot{info: was, sha: hex.EncodeToString(sum.Sum(nil))}
	if s.whole = len(head) <= maxConfigSize; s.whole {
		s.bytes = head
	}
	return s, nil
}

// fault names the file in an error; nil stays nil.
func (p *place) fault(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case what == "":
		return fmt.Errorf("%s: %w", p.file, bare(err))
	}
	return fmt.Errorf("%s %s: %w", what, p.file, bare(err))
}

// bare is an error without the names that the system knows the file by.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}
