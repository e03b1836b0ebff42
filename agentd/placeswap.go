package agentd

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file changes what is in a place: stage → swap → sweep, or the way back.

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
