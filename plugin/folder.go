package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is a directory of plugins; "" has none.
//
// A command type is the name of a regular, executable file directly in it. The
// name begins with a letter or digit and goes on with those, '.', '_' and '-',
// as the file system spells it. A symlink is followed when it stays within the
// folder. Neither the file nor the folder may be writable by everyone.
type Folder string

var typeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ErrNoPlugin says that a folder has no plugin of that name.
var ErrNoPlugin = errors.New("no such plugin")

// Resolve returns the path of the program for a command type.
func (f Folder) Resolve(name string) (string, error) {
	if !typeName.MatchString(name) {
		return "", fmt.Errorf("%w: %.140q is not a plugin's name", ErrNoPlugin, name)
	}
	if f == "" {
		return "", fmt.Errorf("%w: %q (there is no plugin folder)", ErrNoPlugin, name)
	}
	dir, err := f.root()
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %q", ErrNoPlugin, name)
	} else if err != nil {
		return "", fmt.Errorf("plugin %q: %w", name, err)
	}
	if !strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
		return "", fmt.Errorf("plugin %q: is a link that leaves the plugin folder", name)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("plugin %q: %w", name, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("plugin %q: not a regular file", name)
	case info.Mode()&0o002 != 0:
		return "", fmt.Errorf("plugin %q: everyone may write to it", name)
	case info.Mode()&0o111 == 0:
		return "", fmt.Errorf("plugin %q: not executable", name)
	}
	return path, nil
}

func (f Folder) root() (string, error) {
	dir, err := filepath.Abs(string(f))
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", fmt.Errorf("plugin folder: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return "", fmt.Errorf("plugin folder: %w", err)
	case !info.IsDir():
		return "", fmt.Errorf("plugin folder %s: not a directory", dir)
	case info.Mode()&0o002 != 0:
		return "", fmt.Errorf("plugin folder %s: everyone may write to it", dir)
	}
	return dir, nil
}

// Entry is one visible name in a folder.
type Entry struct {
	Name  string
	Path  string // of the program
	Stamp string // differs when the program does
	Err   error  // why Resolve refuses it
}

// Entries returns what is in the folder, by name. Hidden names are left out,
// and so are those that no plugin can have.
func (f Folder) Entries() ([]Entry, error) {
	if f == "" {
		return nil, nil
	}
	dir, err := f.root()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("plugin folder: %w", err)
	}
	var list []Entry
	for _, file := range files {
		if !typeName.MatchString(file.Name()) {
			continue
		}
		e := Entry{Name: file.Name()}
		if e.Path, e.Err = f.Resolve(e.Name); e.Err == nil {
			e.Stamp = stamp(e.Path)
		}
		list = append(list, e)
	}
	return list, nil
}

// stamp tells one state of a file from another. The time of the last change
// of the inode moves with every write, chmod and rename, whatever mtime is set to.
func stamp(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	return fmt.Sprint(path, st.Dev, st.Ino, st.Size, st.Mode, st.Mtim, st.Ctim)
}

// Types returns the names that Resolve accepts now, sorted. What it refuses is
// left out.
func (f Folder) Types() ([]string, error) {
	entries, err := f.Entries()
	var types []string
	for _, e := range entries {
		if e.Err == nil {
			types = append(types, e.Name)
		}
	}
	return types, err
}
