package store

import (
	"bytes"
	"fmt"
)

// defaultLimit is the page size when a Range has none.
const defaultLimit = 1000

// Cursor walks the records of a Table, a *bbolt.Cursor for one. A nil key is
// past the end; what it returns is good until the transaction ends.
type Cursor interface {
	Seek(key []byte) (k, record []byte) // the first key that is not smaller
	Last() (k, record []byte)
	Next() (k, record []byte)
	Prev() (k, record []byte)
}

// ReadKeys is Get on a table.
func ReadKeys(t Table, keys [][]byte) ([]KV, error) {
	kvs := make([]KV, len(keys))
	for i, k := range keys {
		record := t.Get(k)
		if record == nil {
			kvs[i] = KV{Key: bytes.Clone(k)}
			continue
		}
		var err error
		if kvs[i], err = CopyRow(k, record); err != nil {
			return nil, err
		}
	}
	return kvs, nil
}

// ReadPage is Scan on a table; rev goes into the page.
func ReadPage(c Cursor, r Range, rev Rev) (Page, error) {
	p := Page{Rev: rev}
	limit := r.Limit
	if limit < 0 {
		return Page{}, fmt.Errorf("%w: limit %d", ErrInvalid, limit)
	}
	if limit == 0 {
		limit = defaultLimit
	}
	start, step := seekForward, c.Next
	if r.Reverse {
		start, step = seekReverse, c.Prev
	}
	size := 0
	for k, record := start(c, r); k != nil && bytes.HasPrefix(k, r.Prefix); k, record = step() {
		if len(p.Items) == limit || size > MaxPage {
			p.More = true
			break
		}
		row, err := CopyRow(k, record)
		if err != nil {
			return Page{}, err
		}
		size += len(k) + len(record)
		p.Items = append(p.Items, row)
	}
	return p, nil
}

func seekForward(c Cursor, r Range) (k, record []byte) {
	if bytes.Compare(r.After, r.Prefix) < 0 || len(r.After) == 0 {
		return c.Seek(r.Prefix)
	}
	k, record = c.Seek(r.After)
	if bytes.Equal(k, r.After) {
		return c.Next()
	}
	return k, record
}

func seekReverse(c Cursor, r Range) (k, record []byte) {
	end := End(r.Prefix)
	if len(r.After) > 0 && (end == nil || bytes.Compare(r.After, end) < 0) {
		end = r.After
	}
	if end == nil {
		return c.Last()
	}
	if k, _ = c.Seek(end); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// CopyRow makes a row of a record, both in one piece of memory. A record out of
// the limits was not written by Commit; its claimed length is not believed.
func CopyRow(key, record []byte) (KV, error) {
	if len(key) > MaxKey || len(record) < revSize || len(record) > revSize+MaxValue {
		return KV{}, fmt.Errorf("a key of %d bytes with a record of %d is no row", len(key), len(record))
	}
	n, k := len(key)+len(record)-revSize, len(key)
	mem := make([]byte, n)
	copy(mem, key)
	copy(mem[k:], record[revSize:])
	return KV{Key: mem[:k:k], Value: mem[k:], Rev: revOf(record)}, nil
}
