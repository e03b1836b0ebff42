package store

import (
	"bytes"
	"slices"
	"sort"
)

// maxBlock is how many rows a block holds before it is cut in two.
const maxBlock = 512

// rows is Mem's table: rows in key order, in blocks, so that an insert moves a
// block's worth of rows and not all of them.
type rows struct {
	blocks [][]row // none is empty
}

type row struct {
	key, record []byte
}

// Get implements Table.
func (t *rows) Get(key []byte) []byte {
	b, i, found := t.find(key)
	if !found {
		return nil
	}
	return t.blocks[b][i].record
}

// Put implements Table.
func (t *rows) Put(key, record []byte) error {
	r := row{bytes.Clone(key), bytes.Clone(record)} // the batch is one piece of memory; a row must not pin it
	b, i, found := t.find(key)
	switch {
	case found:
		t.blocks[b][i] = r
		return nil
	case len(t.blocks) == 0:
		t.blocks = [][]row{{r}}
		return nil
	case b == len(t.blocks): // after all others: append to the last block
		b--
		i = len(t.blocks[b])
	}
	block := slices.Insert(t.blocks[b], i, r)
	t.blocks[b] = block
	if half := len(block) / 2; len(block) > maxBlock {
		t.blocks[b] = slices.Clone(block[:half])
		t.blocks = slices.Insert(t.blocks, b+1, slices.Clone(block[half:]))
	}
	return nil
}

// Delete implements Table.
func (t *rows) Delete(key []byte) error {
	b, i, found := t.find(key)
	if !found {
		return nil
	}
	t.blocks[b] = slices.Delete(t.blocks[b], i, i+1)
	if len(t.blocks[b]) == 0 {
		t.blocks = slices.Delete(t.blocks, b, b+1)
	}
	return nil
}

func (t *rows) dropBefore(key []byte) {
	b, i, _ := t.find(key)
	t.blocks = slices.Delete(t.blocks, 0, b)
	if i > 0 {
		t.blocks[0] = slices.Clone(t.blocks[0][i:])
	}
}

// find returns the place of the first row that is not smaller than key; past
// the last row it is the start of the block after the last.
func (t *rows) find(key []byte) (block, index int, found bool) {
	block = sort.Search(len(t.blocks), func(b int) bool {
		rows := t.blocks[b]
		return bytes.Compare(rows[len(rows)-1].key, key) >= 0
	})
	if block == len(t.blocks) {
		return block, 0, false
	}
	index, found = slices.BinarySearchFunc(t.blocks[block], key, func(r row, key []byte) int {
		return bytes.Compare(r.key, key)
	})
	return block, index, found
}

func (t *rows) cursor() *rowCursor { return &rowCursor{t: t} }

// rowCursor is a Cursor on rows.
type rowCursor struct {
	t            *rows
	block, index int
}

func (c *rowCursor) Seek(key []byte) (k, record []byte) {
	c.block, c.index, _ = c.t.find(key)
	return c.row()
}

func (c *rowCursor) Last() (k, record []byte) {
	c.block, c.index = len(c.t.blocks), 0
	return c.Prev()
}

func (c *rowCursor) Next() (k, record []byte) {
	if c.index++; c.index == len(c.t.blocks[c.block]) {
		c.block, c.index = c.block+1, 0
	}
	return c.row()
}

func (c *rowCursor) Prev() (k, record []byte) {
	if c.index--; c.index < 0 {
		if c.block == 0 {
			return nil, nil
		}
		c.block--
		c.index = len(c.t.blocks[c.block]) - 1
	}
	return c.row()
}

func (c *rowCursor) row() (k, record []byte) {
	if c.block == len(c.t.blocks) {
		return nil, nil
	}
	r := c.t.blocks[c.block][c.index]
	return r.key, r.record
}
