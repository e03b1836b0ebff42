package agentd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC083FolderMissing(t *testing.T) {
	r := newConfigRig(t)
	r.quick().restart()
	r.put("file", "")
	r.offer(version("a", 1, "a"), version("b", 1, "b"), version("c", 1, "c"))
	r.fail(version("lost", 1, "x", at("no/such/x.conf")), 0, r.file("no"), "no such file or directory")
	r.fail(version("under", 1, "x", at("file/x.conf")), 0, r.file("file"), "not a directory")
	for _, name := range []string{"a", "b", "c"} {
		r.wait(name, 1, musterv1.ConfigStatus_APPLIED)
	}
	r.wantTree("a", "b", "c", "file")
	if err := os.MkdirAll(r.file("no/such"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait("lost", 1, musterv1.ConfigStatus_APPLIED)
	r.wantFile("no/such/x.conf", "", "x")
	r.offer(removal("under"), removal("lost"))
	r.wait("under", -1, musterv1.ConfigStatus_DELETED)
	r.wait("lost", -1, musterv1.ConfigStatus_DELETED)
	r.wantTree("a", "b", "c", "file")
}

// A folder that is gone takes the config with it: deleting that is no error.
func TestN29DeletingWhatIsNotThere(t *testing.T) {
	r := newConfigRig(t)
	r.offer(removal("never"))
	r.wait("never", -1, musterv1.ConfigStatus_DELETED)
	r.put("dir/keep", "")
	r.apply(version("a", 1, "x", at("dir/a")))
	r.apply(version("b", 1, "x"))
	if err := errors.Join(os.RemoveAll(r.file("dir")), os.Remove(r.file("b"))); err != nil {
		t.Fatal(err)
	}
	r.offer(removal("a"), removal("b"))
	r.wait("a", -1, musterv1.ConfigStatus_DELETED)
	r.wait("b", -1, musterv1.ConfigStatus_DELETED)
	r.offer(removal("a"), removal("b")) // and again
	r.apply(version("c", 1, "x"))
	if got := strings.Join(r.history("b"), " "); got != "APPLYING 1/0 APPLIED 1/1 APPLYING -1/1 DELETED -1/0" {
		t.Errorf("told %s", got)
	}
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestC084TargetIsALink(t *testing.T) {
	r := newConfigRig(t)
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("root:x:0"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.put("inside", "of somebody")
	r.put("real/keep", "")
	for link, to := range map[string]string{
		"in": "inside", "out": outside, "dangling": "nowhere", "loop": "loop",
		"folder-out": filepath.Dir(outside), "folder-in": "real",
	} {
		symlink(t, to, r.file(link))
	}
	before := strings.Join(tree(t, r.root), " ")
	for _, name := range []string{"in", "out", "dangling", "loop"} {
		r.fail(version(name, 1, "new"), 0, r.file(name), "symbolic link")
	}
	r.fail(version("f1", 1, "new", at("folder-out/passwd")), 0, "folder-out", "symbolic link")
	r.fail(version("f2", 1, "new", at("folder-in/x")), 0, "folder-in", "symbolic link")
	if after := strings.Join(tree(t, r.root), " "); after != before {
		t.Errorf("the config root held %s and holds %s", before, after)
	}
	if b, _ := os.ReadFile(outside); string(b) != "root:x:0" {
		t.Errorf("outside there is %q", b)
	}
	r.wantFile("inside", "", "of somebody")
	// What was a file when it was applied, and is a link now, is neither replaced nor removed.
	r.apply(version("later", 1, "one"))
	if err := os.Remove(r.file("later")); err != nil {
		t.Fatal(err)
	}
	symlink(t, outside, r.file("later"))
	r.fail(version("later", 2, "two"), 0, "symbolic link")
	r.fail(removal("later"), 0, "symbolic link")
	if _, err := os.Readlink(r.file("later")); err != nil {
		t.Error(err)
	}
}

func TestC085Mounts(t *testing.T) {
	source := filepath.Join(t.TempDir(), "mounted")
	if err := os.WriteFile(source, []byte("mounted"), 0o644); err != nil {
		t.Fatal(err)
	}
	readonly := t.TempDir()
	if err := os.WriteFile(filepath.Join(readonly, "x"), []byte("read only"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, _ := newConfigChild(t, func(root, _ string) string {
		for _, dir := range []string{"ro", "other"} {
			if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, "bound"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return strings.Join([]string{
			"bind:" + source + ":" + root + "/bound",
			"readonly:" + readonly + ":" + root + "/ro",
			"tmpfs:1m:" + root + "/other",
		}, ",")
	})
	r.fail(version("bound", 1, "new"), 0, "bound", "device or resource busy")
	r.fail(version("ro", 1, "new", at("ro/x")), 0, "ro/x", "read-only file system")
	r.fail(version("ro2", 1, "new", at("ro/y")), 0, "ro/y", "read-only file system")
	r.apply(version("other", 1, "new", at("other/x"))) // another file system than the data folder
	r.apply(version("other", 2, "newer", at("other/x")))
	r.wantFile("bound", "", "mounted")
	r.wantFile("ro/x", "", "read only")
	if b, _ := os.ReadFile(source); string(b) != "mounted" {
		t.Errorf("the mounted file holds %q", b)
	}
}

const nobody = 65534

func TestC087TargetCannotBeWritten(t *testing.T) {
	data, root := t.TempDir(), t.TempDir()
	for _, dir := range []string{data, root} {
		chmod(t, filepath.Dir(dir), 0o755)
		chown(t, dir)
	}
	mkdir := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		chown(t, filepath.Join(root, name))
		chmod(t, filepath.Join(root, name), mode)
	}
	write := func(name string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.WriteFile(file, []byte("old"), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	mkdir("closed", 0o555)
	mkdir("leaving", 0o755)
	secret := write("secret", 0o000)   // whose content nobody may see
	foreign := write("foreign", 0o644) // of root, if root runs the tests
	fixed := write("fixed", 0o644)
	chown(t, fixed)
	immutable := setImmutable(fixed, true) == nil
	t.Cleanup(func() { _ = setImmutable(fixed, false) })

	ln, endpoint := listen(t)
	r := &configRig{t: t, c: serve(t, ln), root: root}
	startConfigChild(t, data, endpoint, root, fmt.Sprint("AGENTD_TEST_USER=", nobody))
	r.fail(version("closed", 1, "new", at("closed/x")), 0, "closed/x", "permission denied")
	r.fail(version("secret", 1, "new"), 0, secret, "permission denied")
	r.fail(version("leaving", 1, "new", at("leaving/x"), checked(`rm -r "$(dirname "$MUSTER_CONFIG_TARGET")"`)), 0, "leaving/x", "no such file")
	if os.Geteuid() == 0 {
		r.fail(version("foreign", 1, "new"), 0, foreign, "operation not permitted") // its owner would change
	}
	if immutable {
		r.fail(version("fixed", 1, "new"), 0, fixed, "operation not permitted")
	}
	r.apply(version("good", 1, "new"))
	for _, name := range []string{"foreign", "fixed"} {
		r.wantFile(name, "", "old")
	}

	chmod(t, filepath.Join(root, "closed"), 0o755)
	chmod(t, secret, 0o640)
	chown(t, secret)
	chown(t, foreign)
	_ = setImmutable(fixed, false)
	mkdir("leaving", 0o755)
	r.offer(version("leaving", 2, "new", at("leaving/x")))
	for name, v := range map[string]int32{"closed": 1, "secret": 1, "leaving": 2} {
		r.wait(name, v, musterv1.ConfigStatus_APPLIED)
	}
	if os.Geteuid() == 0 {
		r.wait("foreign", 1, musterv1.ConfigStatus_APPLIED)
		wantOwner(t, foreign, nobody)
	}
	if immutable {
		r.wait("fixed", 1, musterv1.ConfigStatus_APPLIED)
	}
	wantMode(t, secret, 0o640)
}

// chown gives a file to the user whom the agent is.
func chown(t *testing.T, file string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(file, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

func wantOwner(t *testing.T, file string, uid int) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if own, _ := owner(info); own.uid != uid {
		t.Errorf("%s belongs to %d, want %d", file, own.uid, uid)
	}
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h

// setImmutable is chattr +i and -i.
func setImmutable(file string, on bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	if flags &^= immutableFlag; on {
		flags |= immutableFlag
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// The owner of a file stays, and its mode, also where root applies configs.
func TestOwnerAndModeStay(t *testing.T) {
	r := newConfigRig(t)
	r.put("a", "old")
	chown(t, r.file("a"))
	chmod(t, r.file("a"), 0o751)
	mode := func(o *musterv1.ConfigOffer) { o.File.Mode = "0644" }
	r.apply(version("a", 1, "new", mode))
	wantMode(t, r.file("a"), 0o751)
	if os.Geteuid() == 0 {
		wantOwner(t, r.file("a"), nobody)
	}
	r.apply(version("b", 1, "new", mode))
	wantMode(t, r.file("b"), 0o644)
	r.apply(version("c", 1, "new"))
	wantMode(t, r.file("c"), 0o600)
}

// What is no regular file is neither opened nor replaced; a pipe would hold up
// who opens it.
func TestTargetIsNoFile(t *testing.T) {
	r := newConfigRig(t)
	if err := errors.Join(unix.Mkfifo(r.file("pipe"), 0o600), os.Mkdir(r.file("dir"), 0o755)); err != nil {
		t.Fatal(err)
	}
	r.fail(version("pipe", 1, "new"), 0, "no regular file")
	r.fail(version("dir", 1, "new"), 0, "no regular file")
	for name, typ := range map[string]fs.FileMode{"pipe": fs.ModeNamedPipe, "dir": fs.ModeDir} {
		if info, err := os.Lstat(r.file(name)); err != nil || info.Mode().Type() != typ {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// The config root may go and come again.
func TestConfigRootComesBack(t *testing.T) {
	r := newConfigRig(t)
	r.quick().restart()
	if err := os.Remove(r.root); err != nil {
		t.Fatal(err)
	}
	r.fail(version("a", 1, "new"), 0, "config root", r.root)
	if err := os.Mkdir(r.root, 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait("a", 1, musterv1.ConfigStatus_APPLIED)
}

func TestConfigRootIsChecked(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	symlink(t, dir, filepath.Join(dir, "link"))
	for _, root := range []string{filepath.Join(dir, "none"), file, dir, data, "/", filepath.Join(dir, "link")} {
		a, err := New(Config{Dir: data, ConfigRoot: root})
		if err == nil {
			a.Close()
			t.Errorf("%s was taken", root)
		}
	}
	a, err := New(Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	wantMode(t, filepath.Join(data, "configs"), 0o700|os.ModeDir)
}
