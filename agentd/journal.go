package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// errNoRoom refuses new commands on a full disk, while there still is room to
// end the old ones.
var errNoRoom = errors.New("journal: no room on the disk")

// journal is an append-only file of what became of each command. Records that
// are appended at the same time share one fsync. When the file has grown much
// it is rewritten with what is still needed.
//
// append may be called from anywhere; run does the writing.
type journal struct {
	dir     string
	log     *slog.Logger
	metrics *metrics
	faults  faults

	mu      sync.Mutex
	queue   []*write
	epoch   string
	seq     uint32 // the last given out
	durable uint32 // the last known to be on disk
	settled *window
	wake    chan struct{}

	// From here on for the writer alone.
	f       *os.File
	size    int64
	room    int64 // the file's blocks reach to here
	live    map[string][]span
	rewrote int64 // size after the last rewriting
	broken  bool  // an fsync failed: what the file holds is not known
}

// write is a record on its way to the file.
type write struct {
	record
	lazy  bool // need not be on disk when done is called
	frame []byte
	done  func(error)
}

// faults are calls to the system that a test may let fail.
type faults struct {
	write    func(*os.File, []byte) (int, error)
	sync     func(*os.File) error
	allocate func(*os.File, int64) error
}

// allocate makes the file system set blocks aside up to size, which may lie
// behind the end of the file.
func allocate(f *os.File, size int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
}

const (
	rewriteAt  = 4 << 20
	roomStep   = 1 << 20
	roomToEnd  = 64 << 10 // kept free for the end of commands that are here …
	roomPerCmd = 8 << 10  // … and this much for each
)

func newJournal(dir string, windowSize int, log *slog.Logger, m *metrics) *journal {
	return &journal{
		dir: dir, log: log, metrics: m,
		faults: faults{(*os.File).Write, (*os.File).Sync, allocate},
		wake:   make(chan struct{}, 1), settled: newWindow(windowSize), live: map[string][]span{},
	}
}

func (j *journal) path() string { return filepath.Join(j.dir, "journal") }

// append queues a record and returns at once. done is called by run, in the
// order of the appends, when the record is on disk or cannot be written; it
// must not block and may be nil.
func (j *journal) append(r record, done func(error)) { j.enqueue(r, false, done) }

// appendLazily queues a record that nobody depends on: it is written soon, and
// reaches the disk with the next one that matters.
func (j *journal) appendLazily(r record, done func(error)) { j.enqueue(r, true, done) }

func (j *journal) enqueue(r record, lazy bool, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	r.Seq = j.seq
	if r.Kind == kindSettled {
		j.settled.add(r.ID)
	}
	j.queue = append(j.queue, &write{record: r, lazy: lazy, done: done})
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// position is where the journal stands for certain.
func (j *journal) position() *musterv1.JournalPosition {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &musterv1.JournalPosition{Epoch: j.epoch, Seq: j.durable}
}

// forgot tells of an id that is not held: was it settled, or is it too old to know?
func (j *journal) forgot(id string) (settled, tooOld bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settled.has(id), j.settled.below(id)
}

// run writes until ctx ends and everything queued before is written.
func (j *journal) run(ctx context.Context) {
	for {
		select {
		case <-j.wake:
			j.commit()
		case <-ctx.Done():
			j.commit()
			return
		}
	}
}

// commit writes all that is queued, with one write and at most one fsync.
func (j *journal) commit() {
	j.mu.Lock()
	batch := j.queue
	j.queue = nil
	j.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	var refused []*write
	batch, refused = j.admit(batch)
	err := j.writeBatch(batch)
	if err != nil {
		j.metrics.journalErrors.Inc()
		j.log.Error("journal not written", "records", len(batch), "err", err)
	}
	for _, w := range refused {
		w.done(errNoRoom)
	}
	for _, w := range batch {
		w.done(err)
	}
	if err == nil && j.size > max(rewriteAt, 2*j.rewrote) {
		if err := j.rewrite(); err != nil {
			j.log.Error("journal not rewritten", "err", err)
			j.rewrote = j.size // not again with the next record
		}
	}
}

// admit makes sure of room. Without it new commands are refused, and what
// belongs to those that are here lives on the reserve.
func (j *journal) admit(batch []*write) (admitted, refused []*write) {
	n := int64(0)
	for i, w := range batch {
		frame, err := w.encode()
		if err != nil {
			j.log.Error("journal record", "cmd", w.ID, "err", err)
			batch[i] = &write{record: record{Kind: w.Kind, ID: w.ID, Seq: w.Seq}, done: func(error) { w.done(err) }}
			continue
		}
		w.frame = frame
		n += int64(len(frame))
	}
	if j.reserve(n + roomToEnd + int64(len(j.live)+len(batch))*roomPerCmd) {
		return batch, nil
	}
	for _, w := range batch {
		if w.Kind == kindReceived {
			refused = append(refused, w)
		} else {
			admitted = append(admitted, w)
		}
	}
	return admitted, refused
}

// reserve makes the file system set n bytes aside behind the end of the file.
func (j *journal) reserve(n int64) bool {
	want := j.size + n
	if want <= j.room || j.f == nil {
		return true
	}
	want = (want + roomStep - 1) / roomStep * roomStep
	err := j.faults.allocate(j.f, want)
	switch {
	case err == nil:
		j.room = want
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return false
	default: // a file system without it; then the write itself will tell
	}
	return true
}

func (j *journal) writeBatch(batch []*write) error {
	if j.broken {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	var b []byte
	lazy := true
	for _, w := range batch {
		b = append(b, w.frame...)
		lazy = lazy && w.lazy
	}
	if _, err := j.faults.write(j.f, b); err != nil {
		// A record cut short would hide those behind it.
		if terr := j.f.Truncate(j.size); terr != nil {
			j.broken = true
		}
		return fmt.Errorf("journal: %w", err)
	}
	if !lazy {
		if err := j.faults.sync(j.f); err != nil {
			// The kernel may have dropped the pages and forgotten that it did.
			j.broken = true
			return fmt.Errorf("journal: %w", err)
		}
	}
	off := j.size
	for _, w := range batch {
		n := int64(len(w.frame))
		if n > 0 {
			j.index(w.record, span{off, n})
		}
		off += n
	}
	j.size = off
	if !lazy {
		j.mu.Lock()
		j.durable = batch[len(batch)-1].Seq
		j.mu.Unlock()
	}
	return nil
}

// index notes where the records are that a rewriting must keep.
func (j *journal) index(r record, at span) {
	switch r.Kind {
	case kindReceived, kindStarted, kindGroup, kindCancelled:
		j.live[r.ID] = append(j.live[r.ID], at)
	case kindEnded:
		j.live[r.ID] = []span{at}
	case kindSettled:
		delete(j.live, r.ID)
	}
}

// rewrite makes a new file of what is still needed and puts it in the place of
// the old one.
func (j *journal) rewrite() error {
	tmp := j.path() + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	w := rewriter{from: j.f, to: f, live: map[string][]span{}}
	w.head(j.heading())
	w.copy(j.live)
	err = w.err
	if err == nil {
		err = j.faults.sync(f)
	}
	if err == nil {
		err = os.Rename(tmp, j.path())
	}
	if err != nil {
		f.Close()
		os.Remove(tmp)
		return fmt.Errorf("journal: rewrite: %w", err)
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f, j.size, j.room, j.live, j.rewrote, j.broken = f, w.size, 0, w.live, w.size, false
	if err := syncDir(j.dir); err != nil {
		j.broken = true // the old name may come back after a crash
		return fmt.Errorf("journal: rewrite: %w", err)
	}
	return nil
}

// heading is what a file begins with: who it is and what was settled.
func (j *journal) heading() []record {
	j.mu.Lock()
	defer j.mu.Unlock()
	head := []record{{Kind: kindHeader, Seq: j.seq, Epoch: j.epoch, Floor: j.settled.floor}}
	for ids := range slices.Chunk(j.settled.least, 1000) {
		head = append(head, record{Kind: kindForgotten, Seq: j.seq, IDs: slices.Clone(ids)})
	}
	return head
}

func (j *journal) close() {
	if j.f != nil {
		j.f.Close()
	}
}

// rewriter copies records into a new file.
type rewriter struct {
	from *os.File
	to   *os.File
	size int64
	live map[string][]span
	err  error
}

func (w *rewriter) head(rs []record) {
	for _, r := range rs {
		b, err := r.encode()
		if err != nil {
			w.err = err
			return
		}
		w.write(b)
	}
}

// copy keeps the order that the records have in the old file.
func (w *rewriter) copy(live map[string][]span) {
	type item struct {
		id string
		at span
	}
	var items []item
	for id, spans := range live {
		for _, s := range spans {
			items = append(items, item{id, s})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return int(a.at.off - b.at.off) })
	for _, it := range items {
		b := make([]byte, it.at.size)
		if _, err := w.from.ReadAt(b, it.at.off); err != nil && w.err == nil {
			w.err = err
		}
		w.live[it.id] = append(w.live[it.id], span{w.size, it.at.size})
		w.write(b)
	}
}

func (w *rewriter) write(b []byte) {
	if w.err != nil {
		return
	}
	_, w.err = w.to.Write(b)
	w.size += int64(len(b))
}
