package boltstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"

	"github.com/musterhq/muster/coordinator/store"
)

// maxFaults is how many faults a report names.
const maxFaults = 100

// Report is what Check found in a file.
type Report struct {
	Path   string        `json:"path"`
	Size   int64         `json:"size"`     // bytes of the file
	Used   int64         `json:"used"`     // bytes of it that hold something
	Rev    store.Rev     `json:"revision"` // of the last commit
	Spaces []SpaceReport `json:"spaces"`
	Faults []string      `json:"faults"` // the first 100
	Count  int           `json:"fault_count"`
}

// SpaceReport is what a space holds.
type SpaceReport struct {
	Name  store.Space `json:"name"`
	Rows  int         `json:"rows"`
	Bytes int64       `json:"bytes"` // of keys and values

	sum  []byte // of all keys and records; two spaces with the same are the same
	hash hash.Hash
}

// Sound reports whether no fault was found.
func (r *Report) Sound() bool { return r.Count == 0 }

func (r *Report) add(fault string) {
	if r.Count++; r.Count <= maxFaults {
		r.Faults = append(r.Faults, fault)
	}
}

func newSpaceReport(name store.Space) SpaceReport {
	return SpaceReport{Name: name, hash: sha256.New()}
}

func (s *SpaceReport) add(key, record []byte) {
	s.Rows++
	s.Bytes += int64(len(key) + len(record))
	head := binary.BigEndian.AppendUint32(nil, uint32(len(key)))
	s.hash.Write(binary.BigEndian.AppendUint32(head, uint32(len(record))))
	s.hash.Write(key)
	s.hash.Write(record)
}

func (s *SpaceReport) close() { s.sum, s.hash = s.hash.Sum(nil), nil }

// same reports whether two files have the same rows.
func (r *Report) same(other *Report) bool {
	if r.Rev != other.Rev || len(r.Spaces) != len(other.Spaces) {
		return false
	}
	for i, s := range r.Spaces {
		if o := other.Spaces[i]; s.Name != o.Name || s.Rows != o.Rows || !bytes.Equal(s.sum, o.sum) {
			return false
		}
	}
	return true
}

// Check reads all of a store file that no coordinator has open: that each page
// is used once or free, that keys are in order, and that each row can be one.
// row, if not nil, looks at each row and says what is wrong with it. What is
// wrong is in the report; an error means that the file could not be checked.
// Nothing is written.
func Check(ctx context.Context, path string, row func(space store.Space, key, value []byte) error) (*Report, error) {
	f, err := openOffline(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := newWalk(f)
	if row != nil {
		w.row = func(space store.Space, kv store.KV, _ []byte) error {
			if err := row(space, kv.Key, kv.Value); err != nil {
				w.fault("space %q: key %q: %v", space, kv.Key, err)
			}
			return nil
		}
	}
	if err := w.run(ctx); err != nil {
		return nil, fmt.Errorf("store file %s: %w", path, err)
	}
	return w.report, nil
}
