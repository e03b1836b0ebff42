package coordinator

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// encode makes the bytes of a row. Rows are made from messages that were
// decoded or checked before, so that they can be encoded.
func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("coordinator: row %T: %v", m, err))
	}
	return b
}

// decode reads a row's value into m.
func decode(key, value []byte, m proto.Message) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return fmt.Errorf("row %q: %w", key, err)
	}
	return nil
}
