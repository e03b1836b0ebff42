package agentd

import (
	"cmp"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Somebody swaps the target and its folder for links all the time. Nothing
// outside is ever written, and no link is replaced.
func TestC084LinkSwappedMeanwhile(t *testing.T) {
	for name, how := range map[string]bool{"exchange": false, "no exchange": true} {
		t.Run(name, func(t *testing.T) { raceLinks(t, how) })
	}
}

func raceLinks(t *testing.T, noExchange bool) {
	root, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "a")
	if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o644), os.Mkdir(filepath.Join(root, "dir"), 0o755)); err != nil {
		t.Fatal(err)
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		swapLinks(root, victim, done)
	}()
	swapped, refused, raced := 0, 0, 0
	enough := func(n int) bool { return n >= 200 && swapped >= 20 && raced >= 20 }
	for n, end := 0, time.Now().Add(30*time.Second); !enough(n) && time.Now().Before(end); n++ {
		switch err := raceOnce(t, root, noExchange); {
		case err == nil:
			swapped++
		case errors.Is(err, errRaced):
			raced++
		default:
			refused++
		}
	}
	close(done)
	<-stopped
	t.Logf("%d swapped, %d raced, %d refused", swapped, raced, refused)
	if swapped < 20 || raced < 20 {
		t.Errorf("there was no race: %d swapped, %d raced, %d refused", swapped, raced, refused)
	}
	if got := strings.Join(tree(t, outside), " "); got != "a" {
		t.Errorf("outside there is %s", got)
	}
	if b, _ := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("outside there is %q", b)
	}
}

// swapLinks makes the target by turns a link and a file, and now and then a link
// of its folder.
func swapLinks(root, victim string, done <-chan struct{}) {
	dir := filepath.Join(root, "dir")
	target := filepath.Join(dir, "a")
	pause := func() {
		for range rand.N(500) {
			runtime.Gosched()
		}
	}
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		default:
		}
		_ = os.WriteFile(target+".file", []byte("file"), 0o644)
		_ = os.Rename(target+".file", target)
		pause()
		if i%2 == 0 {
			_ = os.Symlink(victim, target+".link")
			_ = os.Rename(target+".link", target)
		}
		if i%8 == 0 {
			_ = os.Rename(dir, dir+".real")
			_ = os.Symlink(filepath.Dir(victim), dir)
			pause()
			_ = os.Remove(dir)
			_ = os.Rename(dir+".real", dir)
		}
	}
}

// raceOnce puts content in place of a file that is there.
func raceOnce(t *testing.T, root string, noExchange bool) error {
	p, err := openPlace(root, "dir/a", configKey{musterv1.Config_PIPELINE, "a"})
	if err != nil {
		return err
	}
	defer p.close()
	defer p.sweep()
	p.noExchange = noExchange
	was, err := p.look()
	if err != nil || was == nil {
		return cmp.Or(err, fs.ErrNotExist)
	}
	if err := p.stage([]byte("ours"), was, 0o600); err != nil {
		return err
	}
	if err := p.swap(was); err != nil {
		return err
	}
	if info, err := p.dir.Lstat(p.staged); err != nil || !os.SameFile(was, info) {
		t.Errorf("something else was replaced: %v, %v", info, err)
	}
	return nil
}

// Without the exchange of names everything works as with it.
func TestC085FileSystemWithoutExchange(t *testing.T) {
	root := t.TempDir()
	key := configKey{musterv1.Config_PIPELINE, "a"}
	p, err := openPlace(root, "a", key)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.noExchange = true
	put := func(content string) {
		t.Helper()
		was, err := p.look()
		if err == nil {
			if err = p.stage([]byte(content), was, 0o600); err == nil {
				err = p.swap(was)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	content := func() string { b, _ := os.ReadFile(filepath.Join(root, "a")); return string(b) }
	put("one")
	two := version("a", 2, "two").Sha256
	put("two")
	if done, err := p.undoSwap(two); !done || err != nil || content() != "one" {
		t.Errorf("%v, %v, %q", done, err, content())
	}
	if done, err := p.undoSwap(two); done || err != nil || content() != "one" {
		t.Errorf("again: %v, %v, %q", done, err, content())
	}
	was, err := p.look()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.setAside(was); err != nil || content() != "" {
		t.Errorf("%v, %q", err, content())
	}
	if done, err := p.undoAside(); !done || err != nil || content() != "one" {
		t.Errorf("%v, %v, %q", done, err, content())
	}
	if got := strings.Join(tree(t, root), " "); got != "a" {
		t.Errorf("left: %s", got)
	}
}
