package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestC079NamesOutsideTheFolder(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	writeFile(t, filepath.Join(outside, "evil"), "#!/bin/sh\n", 0o755)
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"good": 0o755, "Good2.sh": 0o755, ".hidden": 0o755, "open": 0o757, "plain": 0o644} {
		writeFile(t, filepath.Join(dir, name), "#!/bin/sh\n", mode)
	}
	for link, to := range map[string]string{
		"shell": "/bin/sh", "up": filepath.Join(outside, "evil"), "alias": "good",
		"dangling": "none", "loop": "loop", "toopen": "open",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := Folder(dir)
	for _, name := range []string{
		"../../bin/sh", "/bin/sh", "a/../../x", ".", "..", "", "good\x00", "good\n", "shell", "up", "open", ".hidden", "GOOD",
		"plain", "sub", "dangling", "loop", "toopen", "sub/../good", "./good", "..%2fgood", "-x", "good ", strings.Repeat("x", 129), "gööd",
	} {
		if path, err := f.Resolve(name); err == nil {
			t.Errorf("%q is run as %s", name, path)
		}
	}
	for name, file := range map[string]string{"good": "good", "Good2.sh": "Good2.sh", "alias": "good"} {
		path, err := f.Resolve(name)
		if err != nil || filepath.Base(path) != file {
			t.Errorf("%q: %s, %v", name, path, err)
		}
	}
	types, err := f.Types()
	if want := []string{"Good2.sh", "alias", "good"}; err != nil || !slices.Equal(types, want) {
		t.Errorf("got %q, %v; want %q", types, err, want)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Resolve("good"); err == nil {
		t.Error("a folder that everyone may write to is used")
	}
	if _, err := Folder("").Resolve("good"); err == nil {
		t.Error("no folder has a plugin")
	}
}
