package boltstore_test

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// foreignFile is a bbolt file of somebody else.
func foreignFile(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantSound lets bbolt check its file: each page is reachable once or free.
func wantSound(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
}

// wantRefusal opens the file and wants an error with the words in it.
func wantRefusal(t *testing.T, path string, opts boltstore.Options, words ...string) {
	t.Helper()
	s, err := boltstore.Open(path, opts, watched)
	if err == nil {
		s.Close()
		t.Fatalf("%s was opened", path)
	}
	for _, word := range append(words, path) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q says nothing of %q", err, word)
		}
	}
}

func TestC110EmptyFileIsNotNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, watched)
	commit(t, s, put(watched, "k", "1"))
	s.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first refusal must not make it pass
		wantRefusal(t, path, boltstore.Options{}, "empty", "move it away")
	}
	wantUnchanged(t, path, nil)
}

func TestC110MissingFileIsSaidToBeNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	for round := range 2 {
		var log bytes.Buffer
		s, err := boltstore.Open(path, boltstore.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, watched)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Created() || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), path) {
			t.Errorf("round %d: created %v, log %q", round, s.Created(), log.String())
		}
		if rows := rowsIn(t, s, watched); len(rows) != 0 {
			t.Errorf("a new file has rows %v", rows)
		}
		commit(t, s, put(watched, "k", "1"))
		s.Close()
		if err := os.Remove(path); err != nil { // as an operator may
			t.Fatal(err)
		}
	}
}

// TestC110HalfMadeFileIsMadeAnew leaves what a crash in making the file leaves.
func TestC110HalfMadeFileIsMadeAnew(t *testing.T) {
	for name, left := range map[string][]byte{"empty": nil, "garbage": bytes.Repeat([]byte("x"), 10_000)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			write(t, path+".new", left)
			s := open(t, path, watched)
			commit(t, s, put(watched, "k", "1"))
			s.Close()
			if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
				t.Errorf("the half-made file is left: %v", err)
			}
			if rows := rowsIn(t, open(t, path, watched), watched); rows["k"] != "1" {
				t.Errorf("rows %v", rows)
			}
		})
	}
}

func TestOpenNamesWhatItCannotOpen(t *testing.T) {
	dir := t.TempDir()
	wantRefusal(t, filepath.Join(dir, "nowhere", "db"), boltstore.Options{}, "no such file or directory")
	wantRefusal(t, dir, boltstore.Options{}, "is a directory")
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// lockFile takes the file's lock as another process would.
func lockFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestC111LockedFileIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	open(t, path, watched).Close()
	lockFile(t, path)
	start := time.Now()
	wantRefusal(t, path, boltstore.Options{}, "another coordinator")
	if took := time.Since(start); took < 4*time.Second || took > 9*time.Second {
		t.Errorf("refused after %v, want 5 s", took)
	}
}

func TestC111LockThatEndsIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	open(t, path, watched).Close()
	f := lockFile(t, path)
	time.AfterFunc(300*time.Millisecond, func() { f.Close() })
	commit(t, open(t, path, watched), put(watched, "k", "1"))
}

// TestC111StoppedCoordinatorKeepsTheLock holds it in a process that is stopped.
func TestC111StoppedCoordinatorKeepsTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	cmd := child(t.Context(), "hold", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, path, boltstore.Options{LockWait: 200 * time.Millisecond}, "another coordinator")
}

func holdTheLock(path string) int {
	if _, err := boltstore.Open(path, boltstore.Options{}, watched); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	select {}
}

// TestC111OneMakesTheFile opens a missing file from many sides at once.
func TestC111OneMakesTheFile(t *testing.T) {
	const openers = 8
	for range 10 {
		path := filepath.Join(t.TempDir(), "db")
		opened := make(chan *boltstore.Store, openers)
		for range openers {
			go func() {
				s, _ := boltstore.Open(path, boltstore.Options{LockWait: time.Millisecond}, watched)
				opened <- s
			}()
		}
		var first *boltstore.Store
		for range openers {
			s := <-opened
			if s == nil {
				continue
			}
			if first != nil {
				t.Fatal("two have the file open")
			}
			first = s
		}
		if first == nil {
			t.Fatal("nobody has the file open")
		}
		commit(t, first, put(watched, "k", "1"))
		first.Close()
		if rows := rowsIn(t, open(t, path, watched), watched); rows["k"] != "1" {
			t.Fatalf("rows %v", rows)
		}
	}
}
