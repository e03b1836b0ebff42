package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/musterhq/muster/coordinator/store"
)

const maxDepth = 64 // of a tree; one of the largest file is below 10

// walk reads all of a store file, tree by tree in key order, and notes what is
// wrong. Past a damaged page it goes on with the next one.
//
// bbolt has such a check too. It reads through the mapping, in a goroutine of
// its own, so that a damaged file can end the process; and it keeps a map entry
// for each page.
type walk struct {
	f       *os.File
	m       meta
	reached pageSet
	free    pageSet
	report  *Report
	row     func(space store.Space, kv store.KV, record []byte) error // nil: none; an error ends the walk
}

func newWalk(f *os.File) *walk {
	return &walk{f: f, report: &Report{Path: f.Name()}}
}

// pageSet holds one bit for each page of the file.
type pageSet []uint64

func newPageSet(n uint64) pageSet    { return make(pageSet, n/64+1) }
func (s pageSet) has(id uint64) bool { return s[id/64]>>(id%64)&1 != 0 }
func (s pageSet) add(id uint64)      { s[id/64] |= 1 << (id % 64) }

func (w *walk) fault(f string, a ...any) { w.report.add(fmt.Sprintf(f, a...)) }

// run walks the file. Without its metas and its freelist it cannot.
func (w *walk) run(ctx context.Context) error {
	info, err := w.f.Stat()
	if err != nil {
		return err
	}
	w.report.Size = info.Size()
	list, ids, err := w.start()
	if err != nil {
		w.fault("it %v", err)
		return nil
	}
	w.report.Used = int64(w.m.highWater-list.count) * int64(w.m.pageSize)
	w.reached, w.free = newPageSet(w.m.highWater), newPageSet(w.m.highWater)
	for _, id := range ids {
		w.free.add(id)
	}
	w.reached.add(0)
	w.reached.add(1)
	for id := w.m.freelist; id <= w.m.freelist+list.overflow; id++ {
		w.reached.add(id)
	}
	buckets := map[string][]byte{}
	var names []string
	err = w.tree(ctx, w.m.root, "the list of buckets", func(e element) error {
		if !e.bucket || len(e.value) < bucketHeader {
			w.fault("bucket %q is none", e.key)
			return nil
		}
		names, buckets[string(e.key)] = append(names, string(e.key)), e.value
		return nil
	})
	if err != nil {
		return err
	}
	w.own(ctx, buckets[string(ownBucket)])
	for _, name := range names {
		space, isSpace := strings.CutPrefix(name, string(bucketOf("")))
		switch {
		case isSpace:
			if err := w.space(ctx, store.Space(space), buckets[name]); err != nil {
				return err
			}
		case name != string(ownBucket):
			w.fault("bucket %q is not ours", name)
		}
	}
	w.orphans()
	return ctx.Err()
}

func (w *walk) start() (list freelist, ids []uint64, err error) {
	if w.m, err = checkFile(w.f); err != nil {
		return list, nil, err
	}
	if list, err = readFreelist(w.f, w.m); err == nil {
		ids, err = list.ids(w.f, w.m)
	}
	return list, ids, err
}

// own reads the bucket that says whose file this is.
func (w *walk) own(ctx context.Context, bucket []byte) {
	if bucket == nil {
		w.fault("it is not a coordinator's store")
		return
	}
	w.report.Rev = store.Rev(binary.NativeEndian.Uint64(bucket[8:]))
	found := ""
	_ = w.bucket(ctx, bucket, "bucket muster", func(e element) error { // ctx's error comes again
		if string(e.key) == string(formatKey) {
			found = string(e.value)
		}
		return nil
	})
	if found != string(format) {
		w.fault("it has format %q, this program knows %q", found, format)
	}
}

// space reads the rows of a space.
func (w *walk) space(ctx context.Context, name store.Space, bucket []byte) error {
	s := newSpaceReport(name)
	err := w.bucket(ctx, bucket, fmt.Sprintf("space %q", name), func(e element) error {
		kv, err := store.CopyRow(e.key, e.value)
		switch {
		case e.bucket:
			w.fault("space %q: key %q is a bucket", name, e.key)
			return nil
		case err != nil:
			w.fault("space %q: key %q: %v", name, e.key, err)
			return nil
		case kv.Rev == 0 || kv.Rev > w.report.Rev:
			w.fault("space %q: key %q is of revision %d, the last one is %d", name, e.key, kv.Rev, w.report.Rev)
		}
		s.add(e.key, e.value)
		if w.row == nil {
			return nil
		}
		return w.row(name, kv, e.value)
	})
	s.close()
	w.report.Spaces = append(w.report.Spaces, s)
	return err
}

// bucket reads the elements of a bucket, which may lie inside its parent.
func (w *walk) bucket(ctx context.Context, value []byte, of string, leaf func(element) error) error {
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(ctx, root, of, leaf)
	}
	p, err := parsePage(value[bucketHeader:])
	if err != nil || p.branch {
		w.fault("%s: its one page is damaged: %v", of, err)
		return nil
	}
	return each(p.elements, leaf)
}

func each(elements []element, leaf func(element) error) error {
	for _, e := range elements {
		if err := leaf(e); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) tree(ctx context.Context, root uint64, of string, leaf func(element) error) error {
	return w.node(ctx, root, of, nil, nil, 0, leaf)
}

// node reads the page and all below it; its keys must be from low up to, but
// not including, high.
func (w *walk) node(ctx context.Context, id uint64, of string, low, high []byte, depth int, leaf func(element) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := readPage(w.f, w.m, id)
	if err == nil {
		err = w.place(p, low, high, depth)
	}
	if err != nil {
		w.fault("%s: page %d %v", of, id, err)
		return nil
	}
	if !p.branch {
		return each(p.elements, leaf)
	}
	for i, e := range p.elements {
		end := high
		if i+1 < len(p.elements) {
			end = p.elements[i+1].key
		}
		if err := w.node(ctx, e.child, of, e.key, end, depth+1, leaf); err != nil {
			return err
		}
	}
	return nil
}

// place checks that a page may be where it was found.
func (w *walk) place(p page, low, high []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("lies %d pages deep", depth)
	}
	for id := p.id; id <= p.id+p.overflow; id++ {
		if w.reached.has(id) {
			return errors.New("is used twice")
		}
		if w.free.has(id) {
			return errors.New("is used and free")
		}
		w.reached.add(id)
	}
	if n := len(p.elements); n > 0 {
		first, last := p.elements[0].key, p.elements[n-1].key
		if bytes.Compare(first, low) < 0 || high != nil && bytes.Compare(last, high) >= 0 {
			return fmt.Errorf("has keys from %q to %q, but belongs between %q and %q", first, last, low, high)
		}
	}
	return nil
}

// orphans looks for pages that are neither used nor free.
func (w *walk) orphans() {
	n, first := 0, uint64(0)
	for id := range w.m.highWater {
		if !w.reached.has(id) && !w.free.has(id) {
			if n == 0 {
				first = id
			}
			n++
		}
	}
	if n > 0 {
		w.fault("%d pages are neither used nor free, the first is page %d", n, first)
	}
}
