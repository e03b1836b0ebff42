package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// Types returns the names that Resolve accepts now, sorted. What it refuses is
// left out.
func (f Folder) Types() ([]string, error) {
	if f == "" {
		return nil, nil
	}
	dir, err := f.root()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("plugin folder: %w", err)
	}
	var types []string
	for _, e := range entries {
		if _, err := f.Resolve(e.Name()); err == nil {
			types = append(types, e.Name())
		}
	}
	return types, nil
}
