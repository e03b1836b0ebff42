package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	branchFlag    = 0x01
	leafFlag      = 0x02
	elementSize   = 16 // of a branch: pos 4, key size 4, child 8; of a leaf: flags 4, pos 4, key size 4, value size 4
	bucketElement = 0x01
	bucketHeader  = 16      // root 8, sequence 8; root 0: the bucket's one page follows
	maxNode       = 8 << 20 // bytes of a page with its overflow; a few of the largest rows are far below
)

// page is a node of a tree, read from the file and not from bbolt's mapping, so
// that nothing in it can fault.
type page struct {
	id       uint64
	overflow uint64 // pages that follow and belong to it
	branch   bool
	elements []element
}

type element struct {
	key    []byte
	child  uint64 // of a branch
	value  []byte // of a leaf
	bucket bool   // the value is a bucket
}

func readPage(f io.ReaderAt, m meta, id uint64) (page, error) {
	if id < 2 || id >= m.highWater {
		return page{}, fmt.Errorf("is not one of the %d in use", m.highWater)
	}
	b := make([]byte, m.pageSize)
	if _, err := f.ReadAt(b, int64(id)*int64(m.pageSize)); err != nil {
		return page{}, err
	}
	if at := binary.NativeEndian.Uint64(b); at != id {
		return page{}, fmt.Errorf("calls itself %d", at)
	}
	overflow := uint64(binary.NativeEndian.Uint32(b[12:]))
	size := (overflow + 1) * uint64(m.pageSize)
	if id+overflow >= m.highWater || size > maxNode {
		return page{}, fmt.Errorf("claims %d pages after it", overflow)
	}
	if overflow > 0 {
		b = append(b, make([]byte, size-uint64(m.pageSize))...)
		if _, err := f.ReadAt(b[m.pageSize:], int64(id+1)*int64(m.pageSize)); err != nil {
			return page{}, err
		}
	}
	p, err := parsePage(b)
	p.id, p.overflow = id, overflow
	return p, err
}

// parsePage reads the elements and checks that their keys ascend.
func parsePage(b []byte) (page, error) {
	if len(b) < pageHeader {
		return page{}, fmt.Errorf("has %d bytes", len(b))
	}
	order := binary.NativeEndian
	var p page
	switch flags := order.Uint16(b[8:]); flags {
	case branchFlag:
		p.branch = true
	case leafFlag:
	default:
		return page{}, fmt.Errorf("has flags %#x: not a page of a tree", flags)
	}
	n := int(order.Uint16(b[10:]))
	if pageHeader+n*elementSize > len(b) {
		return page{}, fmt.Errorf("claims %d elements", n)
	}
	if p.branch && n == 0 {
		return page{}, errors.New("leads nowhere")
	}
	p.elements = make([]element, n)
	for i := range p.elements {
		at := b[pageHeader+i*elementSize:]
		var e element
		var ok bool
		if p.branch {
			e.child = order.Uint64(at[8:])
			e.key, _, ok = cutElement(at, order.Uint32(at), order.Uint32(at[4:]), 0)
		} else {
			e.bucket = order.Uint32(at)&bucketElement != 0
			e.key, e.value, ok = cutElement(at, order.Uint32(at[4:]), order.Uint32(at[8:]), order.Uint32(at[12:]))
		}
		if !ok {
			return page{}, fmt.Errorf("has element %d beyond its end", i)
		}
		if i > 0 && bytes.Compare(p.elements[i-1].key, e.key) >= 0 {
			return page{}, fmt.Errorf("has key %q after %q", e.key, p.elements[i-1].key)
		}
		p.elements[i] = e
	}
	return p, nil
}

// cutElement returns the key and the value that lie at pos behind an element.
func cutElement(at []byte, pos, keySize, valueSize uint32) (key, value []byte, ok bool) {
	end := uint64(pos) + uint64(keySize) + uint64(valueSize)
	if pos < elementSize || end > uint64(len(at)) {
		return nil, nil, false
	}
	return at[pos : pos+keySize], at[pos+keySize : end], true
}
