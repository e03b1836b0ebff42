package agentd

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"github.com/musterhq/muster/plugin"
)

// kind says what a journal record tells.
type kind string

const (
	kindHeader    kind = "journal"   // first in a file
	kindReceived  kind = "received"  // with the command; with a run mark it is started, too
	kindStarted   kind = "started"   // with the run mark; before the program is
	kindGroup     kind = "group"     // the program's process group
	kindCancelled kind = "cancelled" // while it ran: its program is being stopped
	kindEnded     kind = "ended"     // with the final Target
	kindSettled   kind = "settled"   // the coordinator has it
	kindForgotten kind = "forgotten" // ids settled before the file was rewritten
)

// record is one entry of the journal. Which fields are set depends on the kind.
type record struct {
	Kind kind   `json:"kind"`
	Seq  uint32 `json:"seq"`
	ID   string `json:"id,omitempty"` // of the command

	Command []byte       `json:"command,omitempty"`
	At      stamp        `json:"at,omitzero"`
	Run     string       `json:"run,omitempty"`
	Group   plugin.Group `json:"group,omitzero"`
	Target  []byte       `json:"target,omitempty"`

	Epoch string   `json:"epoch,omitempty"`
	Floor string   `json:"floor,omitempty"` // ids up to this one are never run
	IDs   []string `json:"ids,omitempty"`
}

// A record is framed as magic, length, CRC32C of length and body, body. The
// magic word lets a reader find the next record behind a damaged one.
const (
	magic       = "mj1\n"
	frameHeader = len(magic) + 8
	maxRecord   = 2 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r record) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > maxRecord {
		return nil, fmt.Errorf("journal: record of %d bytes, at most %d", len(body), maxRecord)
	}
	b := make([]byte, 0, frameHeader+len(body))
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, checksum(b[len(magic):], body))
	return append(b, body...), nil
}

func checksum(length, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(length[:4], castagnoli), castagnoli, body)
}

// frameSize returns the length of the body that a frame header announces.
func frameSize(h []byte) (int, bool) {
	n := binary.LittleEndian.Uint32(h[len(magic):])
	return int(n), string(h[:len(magic)]) == magic && n > 0 && n <= maxRecord
}

// decode reads the body of a frame.
func decode(h, body []byte) (r record, ok bool) {
	if binary.LittleEndian.Uint32(h[len(magic)+4:]) != checksum(h[len(magic):], body) {
		return r, false
	}
	return r, json.Unmarshal(body, &r) == nil
}
