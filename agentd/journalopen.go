package agentd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// damage tells what was wrong with a journal; "" is nothing. Then a command
// that is only RECEIVED may have been started all the same: the record that
// says so may be among what was lost.
type damage string

// open reads the journal, calls fn with each record in order, and leaves it
// ready to be written. known says that the data folder was used before, so
// that a journal should be there.
//
// What is damaged is copied to journal.damaged-TIME, a journal that cannot be
// read at all is renamed to that, and the agent starts with the rest. A damaged
// journal has a new epoch: the coordinator must not send again what the lost
// records may have been about.
func (j *journal) open(known bool, fn func(record)) (damage, error) {
	_ = os.Remove(j.path() + ".new") // of a rewriting that was cut short
	f, err := os.OpenFile(j.path(), os.O_RDWR|os.O_APPEND, 0)
	var what damage
	switch {
	case err == nil:
		j.f = f
		if what, err = j.read(fn); err != nil {
			return "", err
		}
	case errors.Is(err, fs.ErrNotExist):
		if known {
			what = "the journal is missing"
		}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EIO), errors.Is(err, unix.EISDIR):
		aside := j.asideName()
		if rerr := os.Rename(j.path(), filepath.Join(j.dir, aside)); rerr != nil {
			return "", fmt.Errorf("journal: %w; and it cannot be set aside: %w", err, rerr)
		}
		what = damage(fmt.Sprintf("the journal cannot be read (%v) and was set aside as %s", err, aside))
	default:
		return "", fmt.Errorf("journal: %w", err)
	}
	if j.epoch == "" || what != "" { // what was lost may be the word that something ran
		j.epoch = rand.Text()
	}
	// A file of its own to begin with: whole, with a header, and no longer than need be.
	if j.f == nil || what != "" || j.size > rewriteAt {
		if err := j.rewrite(); err != nil {
			return "", err
		}
	}
	j.durable = j.seq
	return what, nil
}

func (j *journal) read(fn func(record)) (damage, error) {
	info, err := j.f.Stat()
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	j.size = info.Size()
	damaged := scan(j.f, j.size, func(r record, at span) {
		j.seq = max(j.seq, r.Seq)
		switch r.Kind {
		case kindHeader:
			j.epoch, j.settled.floor = r.Epoch, max(j.settled.floor, r.Floor)
		case kindForgotten:
			for _, id := range r.IDs {
				j.settled.add(id)
			}
		case kindSettled:
			j.settled.add(r.ID)
		}
		j.index(r, at)
		fn(r)
	})
	switch {
	case j.size == 0:
		return "the journal is empty", nil
	case len(damaged) > 0:
		return j.setAside(damaged)
	case j.epoch == "":
		return "the journal has no header", nil
	}
	return "", nil
}

// setAside keeps the damaged bytes for whoever wants to look at them.
func (j *journal) setAside(damaged []span) (damage, error) {
	aside := j.asideName()
	f, err := os.OpenFile(filepath.Join(j.dir, aside), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("journal: set aside what is damaged: %w", err)
	}
	defer f.Close()
	n := int64(0)
	for _, s := range damaged {
		n += s.size
		if _, err := io.Copy(f, io.NewSectionReader(j.f, s.off, s.size)); errors.Is(err, unix.ENOSPC) {
			break // starting matters more than the evidence
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		return "", fmt.Errorf("journal: set aside what is damaged: %w", err)
	}
	return damage(fmt.Sprintf("%d bytes in %d places of the journal were damaged and set aside as %s", n, len(damaged), aside)), nil
}

func (j *journal) asideName() string {
	return "journal.damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
}

// asides names what earlier starts set aside and nobody has taken away yet.
func (j *journal) asides() string {
	files, _ := filepath.Glob(filepath.Join(j.dir, "journal.damaged-*"))
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if len(files) > 3 {
		files = append(files[:3], "…")
	}
	return strings.Join(files, ", ")
}
