package commands

import (
	"errors"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// commandID is the id of a serialized Command, inside of it.
func commandID(command []byte) (id []byte, err error) {
	err = eachField(command, func(number protowire.Number, value []byte) {
		if number == 1 {
			id = value
		}
	})
	if err == nil && id == nil {
		err = errors.New("a Command came without an id")
	}
	return id, err
}

// eachField calls visit for each field of a serialized message that has a length,
// and passes over the others.
func eachField(message []byte, visit func(number protowire.Number, value []byte)) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			n = protowire.ConsumeFieldValue(number, kind, message)
		} else {
			var value []byte
			if value, n = protowire.ConsumeBytes(message); n >= 0 {
				visit(number, value)
			}
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
	}
	return nil
}

// appendSucceeded appends the serialized Target of a program that ended as soon
// as it began.
func appendSucceeded(b, commandID []byte, agentID string, result []byte, journal uint32, at time.Time) []byte {
	var buf [20]byte
	stamp := protowire.AppendVarint(protowire.AppendTag(buf[:0], 1, protowire.VarintType), uint64(at.Unix()))
	stamp = protowire.AppendVarint(protowire.AppendTag(stamp, 2, protowire.VarintType), uint64(at.Nanosecond()))

	b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), commandID)
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), agentID)
	b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(musterv1.Target_SUCCEEDED))
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 0) // exit_code
	b = protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), stamp)
	b = protowire.AppendBytes(protowire.AppendTag(b, 8, protowire.BytesType), stamp)
	b = protowire.AppendBytes(protowire.AppendTag(b, 11, protowire.BytesType), result)
	return protowire.AppendVarint(protowire.AppendTag(b, 12, protowire.VarintType), uint64(journal))
}
