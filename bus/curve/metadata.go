package curve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/textproto"
	"slices"
)

// Metadata is what peers tell each other of a connection, such as Socket-Type
// and Identity. Names don't depend on case: parsed ones are in the usual form,
// with a capital at the start and after each dash.
type Metadata map[string]string

// metadataLimit is what an INITIATE of the largest size has room for.
const metadataLimit = commandLimit - initiateSize

var errMetadataCut = errors.New("metadata is cut short")

func parseMetadata(data []byte) (Metadata, error) {
	metadata := Metadata{}
	for len(data) > 0 {
		var name, value []byte
		var err error
		if name, data, err = cut(data[1:], uint32(data[0])); err != nil {
			return nil, err
		}
		if len(data) < 4 {
			return nil, errMetadataCut
		}
		if value, data, err = cut(data[4:], binary.BigEndian.Uint32(data)); err != nil {
			return nil, err
		}
		if err := checkName(string(name)); err != nil {
			return nil, err
		}
		canonical := textproto.CanonicalMIMEHeaderKey(string(name))
		if _, twice := metadata[canonical]; twice {
			return nil, fmt.Errorf("property %q twice", canonical)
		}
		metadata[canonical] = string(value)
	}
	return metadata, nil
}

func cut(data []byte, n uint32) (head, rest []byte, err error) {
	if uint64(n) > uint64(len(data)) {
		return nil, nil, errMetadataCut
	}
	return data[:n], data[n:], nil
}

func checkName(name string) error {
	if len(name) == 0 || len(name) > math.MaxUint8 {
		return fmt.Errorf("a property's name has %d bytes, not 1 to 255", len(name))
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == '+':
		default:
			return fmt.Errorf("a property's name has the byte %#02x", c)
		}
	}
	return nil
}

// encode gives the properties in the order of their names.
func (m Metadata) encode() (data []byte, err error) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if len(m[name]) > metadataLimit {
			return nil, fmt.Errorf("property %q has %d bytes", name, len(m[name]))
		}
		data = append(data, byte(len(name)))
		data = append(data, name...)
		data = binary.BigEndian.AppendUint32(data, uint32(len(m[name])))
		data = append(data, m[name]...)
	}
	if len(data) > metadataLimit {
		return nil, fmt.Errorf("%d bytes of metadata, the limit is %d", len(data), metadataLimit)
	}
	_, err = parseMetadata(data) // what no peer would take doesn't go out
	return data, err
}
