package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"
	"os"
)

// bbolt's file format, as far as the check needs it: pages with a header; pages
// 0 and 1 are metas, written in turn, and the one with the higher txid counts.
const (
	pageHeader   = 16 // id 8, flags 2, count 2, overflow 4
	metaSize     = 64 // magic 4, version 4, page size 4, flags 4, root 16, freelist 8, high water 8, txid 8, checksum 8
	metaMagic    = 0xED0CDAED
	metaVersion  = 2
	noFreelist   = ^uint64(0)
	freelistFlag = 0x10
	countInFirst = 0xFFFF // a freelist this long has its count as its first id
)

type meta struct {
	pageSize                          uint32
	root, freelist, highWater, change uint64
}

// checkFile looks for what would make bbolt end the process or take the file
// for something that it is not, and returns the meta that counts. It reads a few
// pages, whatever the file's size.
func checkFile(f *os.File) (meta, error) {
	info, err := f.Stat()
	if err != nil {
		return meta{}, err
	}
	switch {
	case !info.Mode().IsRegular():
		return meta{}, errors.New("is not a regular file")
	case info.Size() == 0:
		return meta{}, errors.New("is empty (0 bytes), as after a crash or on a full disk")
	case info.Size() < pageHeader+metaSize:
		return meta{}, fmt.Errorf("is no store: %d bytes", info.Size())
	}
	m, err := readMeta(f, 0)
	if err != nil {
		return meta{}, fmt.Errorf("is damaged, or no store: first meta page: %w", err)
	}
	// Both must be good: a meta page is written within one disk sector, so no
	// crash damages it, and with the newer one a commit would be gone.
	other, err := readMeta(f, int64(m.pageSize))
	if err != nil {
		return meta{}, fmt.Errorf("is damaged: second meta page: %w", err)
	}
	if other.pageSize != m.pageSize {
		return meta{}, fmt.Errorf("is damaged: page sizes %d and %d", m.pageSize, other.pageSize)
	}
	if other.change > m.change {
		m = other
	}
	if pages := uint64(info.Size()) / uint64(m.pageSize); m.highWater > pages {
		return meta{}, fmt.Errorf("is cut short: %d pages of %d", pages, m.highWater)
	}
	if m.root < 2 || m.root >= m.highWater {
		return meta{}, fmt.Errorf("is damaged: root page %d of %d", m.root, m.highWater)
	}
	list, err := readFreelist(f, m)
	if err == nil {
		_, err = list.ids(f, m)
	}
	if err != nil {
		return meta{}, fmt.Errorf("is damaged: freelist: %w", err)
	}
	return m, nil
}

func readMeta(f io.ReaderAt, offset int64) (meta, error) {
	page := make([]byte, pageHeader+metaSize)
	if _, err := f.ReadAt(page, offset); err != nil {
		return meta{}, err
	}
	b, order := page[pageHeader:], binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	m := meta{order.Uint32(b[8:]), order.Uint64(b[16:]), order.Uint64(b[32:]), order.Uint64(b[40:]), order.Uint64(b[48:])}
	switch {
	case order.Uint32(b) != metaMagic:
		return meta{}, errors.New("wrong magic number")
	case order.Uint32(b[4:]) != metaVersion:
		return meta{}, fmt.Errorf("version %d of the file format, want %d", order.Uint32(b[4:]), metaVersion)
	case order.Uint64(b[56:]) != sum.Sum64():
		return meta{}, errors.New("wrong checksum")
	case m.pageSize < 1<<10 || m.pageSize > 1<<24 || bits.OnesCount32(m.pageSize) != 1:
		return meta{}, fmt.Errorf("page size %d", m.pageSize)
	}
	return m, nil
}

// freelist is where the file keeps its free pages.
type freelist struct {
	count    uint64 // of entries
	at       int64  // the first entry's place in the file
	overflow uint64 // pages after its first
}

func readFreelist(f io.ReaderAt, m meta) (freelist, error) {
	if m.freelist == noFreelist {
		return freelist{}, errors.New("is not in the file; \"bbolt surgery freelist rebuild\" makes one")
	}
	if m.freelist < 2 || m.freelist >= m.highWater {
		return freelist{}, fmt.Errorf("page %d of %d", m.freelist, m.highWater)
	}
	header := make([]byte, pageHeader+8)
	l := freelist{at: int64(m.freelist) * int64(m.pageSize)}
	if _, err := f.ReadAt(header, l.at); err != nil {
		return freelist{}, err
	}
	order := binary.NativeEndian
	if id, flags := order.Uint64(header), order.Uint16(header[8:]); id != m.freelist || flags != freelistFlag {
		return freelist{}, fmt.Errorf("page %d calls itself %d with flags %#x", m.freelist, id, flags)
	}
	l.at += pageHeader
	l.count = uint64(order.Uint16(header[10:]))
	if l.count == countInFirst {
		l.count = order.Uint64(header[pageHeader:])
		l.at += 8
	}
	l.overflow = uint64(order.Uint32(header[12:]))
	room := (l.overflow + 1) * uint64(m.pageSize)
	if m.freelist+l.overflow >= m.highWater || l.count > m.highWater || l.count*8 > room-pageHeader {
		return freelist{}, fmt.Errorf("%d entries in %d bytes", l.count, room)
	}
	return l, nil
}

// ids reads the list and makes sure that it gives away no page that it cannot
// mean.
func (l freelist) ids(f io.ReaderAt, m meta) ([]uint64, error) {
	raw := make([]byte, l.count*8)
	if _, err := f.ReadAt(raw, l.at); err != nil && err != io.EOF {
		return nil, err
	}
	ids := make([]uint64, l.count)
	last := uint64(1) // pages 0 and 1 are never free
	for i := range ids {
		id := binary.NativeEndian.Uint64(raw[i*8:])
		if id <= last || id >= m.highWater || id == m.freelist || id == m.root {
			return nil, fmt.Errorf("entry %d is page %d, after %d and below %d", i, id, last, m.highWater)
		}
		ids[i], last = id, id
	}
	return ids, nil
}
