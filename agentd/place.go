package agentd

import (
	"bytes"
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

// restore makes the target what it was, if somebody wrote to it.
func (p *place) restore(s snapshot) (touched bool, err error) {
	if s.info == nil || p.hash(p.base) == s.sha {
		return false, nil
	}
	if !s.whole {
		return true, p.fault("put back", errors.New("it was changed, and is too large to have been kept"))
	}
	if err := p.write(p.aside, s.bytes, s.info, 0); err != nil {
		return true, p.fault("put back", err)
	}
	if err := p.dir.Rename(p.aside, p.base); err != nil {
		return true, p.fault("put back", err)
	}
	return true, p.fault("put back", p.sync())
}

// stage makes the hidden file that will be the target: whole and on disk, with
// the mode and owner of what is there now, or a mode for a new one.
func (p *place) stage(content []byte, now fs.FileInfo, mode fs.FileMode) error {
	err := p.write(p.staged, content, now, mode)
	if err != nil {
		_ = p.dir.Remove(p.staged)
		return p.fault("stage", err)
	}
	return nil
}

func (p *place) write(name string, content []byte, like fs.FileInfo, mode fs.FileMode) error {
	if err := p.remove(name); err != nil {
		return err
	}
	f, err := p.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, bytes.NewReader(content)); err != nil {
		return err
	}
	if like != nil {
		own, there := owner(like)
		if mine, ok := ownerOf(f); there && ok && own != mine {
			if err := f.Chown(own.uid, own.gid); err != nil {
				return err
			}
		}
		mode = like.Mode()
	}
	if err := f.Chmod(mode); err != nil { // after the owner, whose change drops set-id bits
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return p.sync()
}

type owned struct{ uid, gid int }

func owner(info fs.FileInfo) (owned, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return owned{}, false
	}
	return owned{int(st.Uid), int(st.Gid)}, true
}

func ownerOf(f *os.File) (owned, bool) {
	info, err := f.Stat()
	if err != nil {
		return owned{}, false
	}
	return owner(info)
}

// swap puts the staged file in the target's place in one step. What was there,
// which must be what look returned, has the staged file's name afterwards.
func (p *place) swap(was fs.FileInfo) error {
	if was == nil {
		return p.fault("put in place", p.move(p.staged, p.base))
	}
	err := p.exchange(p.staged, p.base)
	if noSuchRename(err) {
		return p.fault("put in place", p.swapByLink(was))
	}
	if err != nil {
		return p.fault("put in place", err)
	}
	if got, err := p.dir.Lstat(p.staged); err != nil || !os.SameFile(was, got) || !got.Mode().IsRegular() {
		_ = p.exchange(p.staged, p.base) // what was put there in the last moment stays
		return p.fault("put in place", errRaced)
	}
	return p.fault("put in place", p.sync())
}

// swapByLink is swap for file systems that cannot exchange two names, such as
// NFS. A link that is put there in the very moment of its rename is replaced,
// not followed.
func (p *place) swapByLink(was fs.FileInfo) error {
	if err := p.remove(p.aside); err != nil {
		return err
	}
	if err := p.dir.Link(p.base, p.aside); err != nil {
		return err
	}
	if got, err := p.dir.Lstat(p.aside); err != nil || !os.SameFile(was, got) {
		_ = p.dir.Remove(p.aside)
		return errRaced
	}
	if err := p.dir.Rename(p.staged, p.base); err != nil {
		_ = p.dir.Remove(p.aside)
		return err
	}
	if err := p.dir.Rename(p.aside, p.staged); err != nil {
		return err
	}
	return p.sync()
}

// setAside takes the target, which must be what look returned, out of its place.
func (p *place) setAside(was fs.FileInfo) error {
	if err := p.remove(p.gone); err != nil {
		return p.fault("remove", err)
	}
	if err := p.move(p.base, p.gone); err != nil {
		return p.fault("remove", err)
	}
	if got, err := p.dir.Lstat(p.gone); err != nil || !os.SameFile(was, got) || !got.Mode().IsRegular() {
		_ = p.move(p.gone, p.base)
		return p.fault("remove", errRaced)
	}
	return nil
}

// undoSwap puts back, if the swap was done, what content of this hash replaced.
// It may be repeated.
func (p *place) undoSwap(sha string) (done bool, err error) {
	if p.hash(p.base) == sha {
		for _, saved := range []string{p.staged, p.aside} {
			if h := p.hash(saved); h != "" && h != sha {
				return true, p.fault("put back", p.putBack(saved, sha))
			}
		}
	}
	p.unstage() // it was not done, or what is there is somebody's work
	return false, nil
}

func (p *place) putBack(saved, sha string) error {
	err := p.exchange(saved, p.base)
	if noSuchRename(err) {
		err = p.dir.Rename(saved, p.base)
	} else if err == nil && p.hash(saved) != sha {
		_ = p.exchange(saved, p.base)
		err = errRaced
	}
	if err != nil {
		return err
	}
	p.unstage()
	return p.sync()
}

// undoAside undoes, if it was done, a setAside. It may be repeated.
func (p *place) undoAside() (done bool, err error) {
	_, err = p.dir.Lstat(p.base)
	if errors.Is(err, fs.ErrNotExist) && p.hash(p.gone) != "" {
		return true, p.fault("put back", p.move(p.gone, p.base))
	}
	return false, p.fault("put back", p.remove(p.gone))
}

// undoNew takes a target away that was not there before, if it is ours. It may
// be repeated.
func (p *place) undoNew(sha string) (done bool, err error) {
	if p.hash(p.base) == sha {
		if err := p.dir.Remove(p.base); err != nil {
			return false, p.fault("remove", err)
		}
		done = true
	}
	p.unstage()
	return done, p.fault("remove", p.sync())
}

// sweep removes the hidden files.
func (p *place) sweep() {
	for _, name := range []string{p.staged, p.aside, p.gone} {
		_ = p.remove(name)
	}
}

// unstage is sweep without what was taken away, which may be of another target.
func (p *place) unstage() {
	_ = p.remove(p.staged)
	_ = p.remove(p.aside)
}

// remove removes a hidden file; it is fine if there is none.
func (p *place) remove(name string) error {
	if err := p.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// exchange and move do what os.Root has no method for. Both names are in the
// folder that is held open.
func (p *place) exchange(a, b string) error { return p.rename(a, b, unix.RENAME_EXCHANGE) }

// move renames to a name that must be free.
func (p *place) move(from, to string) error {
	err := p.rename(from, to, unix.RENAME_NOREPLACE)
	if noSuchRename(err) {
		if err = p.dir.Link(from, to); err == nil {
			err = p.dir.Remove(from)
		}
	}
	if err != nil {
		return err
	}
	return p.sync()
}

func (p *place) rename(from, to string, flags uint) error {
	if p.noExchange {
		return unix.EINVAL
	}
	fd := int(p.handle.Fd())
	return unix.Renameat2(fd, from, fd, to, flags)
}

func noSuchRename(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// sync makes the names in the folder durable. Some file systems know no such
// thing of folders.
func (p *place) sync() error {
	if err := p.handle.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
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
