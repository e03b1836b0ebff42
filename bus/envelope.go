package bus

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Frames is a message encoded for the wire. It never changes, so one may be
// sent to many peers.
type Frames struct {
	typ  string
	wire []byte // the three frames with their headers
	size int    // bytes of the frames alone
}

// Seal encodes m and its envelope, which may be nil.
func Seal(env *musterv1.Envelope, m proto.Message) (Frames, error) {
	return sealInto(nil, env, m)
}

// sealInto is Seal with room for the encoding, which is used if it is enough.
func sealInto(room []byte, env *musterv1.Envelope, m proto.Message) (Frames, error) {
	var opt proto.MarshalOptions
	typ := typeOf(m)
	envSize, bodySize := 0, opt.Size(m)
	if env != nil {
		envSize = opt.Size(env)
	}
	wire := room[:0]
	if need := 3*maxHeader + len(typ) + envSize + bodySize; need > cap(room) {
		wire = make([]byte, 0, need)
	}
	wire = append(appendHeader(wire, flagMore, len(typ)), typ...)
	wire = appendHeader(wire, flagMore, envSize)
	opt.UseCachedSize = true
	var err error
	if env != nil {
		if wire, err = opt.MarshalAppend(wire, env); err != nil {
			return Frames{}, fmt.Errorf("envelope of %s: %w", typ, err)
		}
	}
	wire = appendHeader(wire, 0, bodySize)
	if wire, err = opt.MarshalAppend(wire, m); err != nil {
		return Frames{}, fmt.Errorf("%s: %w", typ, err)
	}
	return Frames{typ: typ, wire: wire, size: len(typ) + envSize + bodySize}, nil
}

// typeOf is the name a message travels under: its full protobuf name.
func typeOf(m proto.Message) string {
	return string(m.ProtoReflect().Descriptor().FullName())
}

// Flag bits of a ZMTP frame; the others are reserved.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
	flagsKnown  = flagMore | flagLong | flagCommand

	maxHeader = 9
)

// appendHeader appends the header of a frame of n bytes.
func appendHeader(b []byte, flags byte, n int) []byte {
	if n <= 255 {
		return append(b, flags, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(n))
}
