package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Reasons why a program could not be started. They are words for people, and
// fixed, so that a script may match them.
const (
	NotFound      = "not found"
	NoInterpreter = "interpreter not found"
	NoDir         = "working directory"
	IsDirectory   = "is a directory"
	Permission    = "permission denied"
	ExecFormat    = "exec format error"
	TextBusy      = "text file busy"
	TooLong       = "argument list too long"
	BadArgument   = "bad argument"
	NoResources   = "out of processes, memory or descriptors"
	Other         = "cannot start"
)

// StartError says why a program never ran.
type StartError struct {
	Reason string // one of the constants
	Path   string
	Err    error // the system's word; may be nil
}

func (e *StartError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%q was not started: %s", e.Path, e.Reason)
	}
	return fmt.Sprintf("%q was not started: %s (%v)", e.Path, e.Reason, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }

// newStartError names the error of the start of path in dir.
func newStartError(path, dir string, err error) *StartError {
	e := &StartError{Reason: Other, Path: path, Err: err}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		e.Err = pe.Err
	}
	file := path
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	info, statErr := os.Stat(file)
	switch {
	case errors.Is(err, syscall.ENOENT) && statErr == nil:
		e.Reason = NoInterpreter // the file is there, so what its first line names is not
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		e.Reason = NotFound
	case statErr == nil && info.IsDir():
		e.Reason = IsDirectory
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.Reason = Permission
	case errors.Is(err, syscall.ENOEXEC):
		e.Reason = ExecFormat
	case errors.Is(err, syscall.ETXTBSY):
		e.Reason = TextBusy
	case errors.Is(err, syscall.E2BIG):
		e.Reason = TooLong
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		e.Reason = NoResources
	}
	return e
}

// check finds what the system would refuse with a less clear word, and the
// file that is to be executed.
func (p *Program) check() (path string, bad *StartError) {
	if len(p.Args) == 0 || p.Path == "" {
		return "", &StartError{Reason: BadArgument, Path: p.Path, Err: errors.New("no program named")}
	}
	for i, a := range append([]string{p.Path, p.Dir}, p.Args...) {
		if strings.IndexByte(a, 0) >= 0 {
			return "", &StartError{Reason: BadArgument, Path: p.Path, Err: fmt.Errorf("argument %d has a NUL byte", i-2)}
		}
	}
	for _, kv := range p.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.IndexByte(kv, 0) >= 0 {
			return "", &StartError{Reason: BadArgument, Path: p.Path, Err: fmt.Errorf("environment entry %.40q", kv)}
		}
	}
	if info, err := os.Stat(p.Dir); err != nil {
		return "", &StartError{Reason: NoDir, Path: p.Path, Err: err}
	} else if !info.IsDir() {
		return "", &StartError{Reason: NoDir, Path: p.Path, Err: fmt.Errorf("%s: %w", p.Dir, syscall.ENOTDIR)}
	}
	return p.lookUp()
}

// lookUp finds a name without a slash in the PATH that the program gets.
func (p *Program) lookUp() (string, *StartError) {
	if strings.Contains(p.Path, "/") {
		return p.Path, nil
	}
	list := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, kv := range p.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = v
		}
	}
	reason := NotFound
	for _, dir := range filepath.SplitList(list) {
		if !filepath.IsAbs(dir) {
			continue // what runs must not depend on where it is started
		}
		file := filepath.Join(dir, p.Path)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode()&0o111 != 0 {
			return file, nil
		}
		reason = Permission
	}
	return "", &StartError{Reason: reason, Path: p.Path, Err: fmt.Errorf("searched in %s", list)}
}
