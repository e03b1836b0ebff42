package bus

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// BenchmarkDispatch is the way from a received message to its callback: envelope
// and body are decoded.
func BenchmarkDispatch(b *testing.B) {
	mux := NewMux()
	Handle(mux, func(*Peer, *musterv1.Envelope, *musterv1.OutputChunk) error { return nil })
	env, err := proto.Marshal(&musterv1.Envelope{Id: "01HZX3Q4N8F0V9C2T7R5K1M6AC"})
	if err != nil {
		b.Fatal(err)
	}
	body, err := proto.Marshal(&musterv1.OutputChunk{CommandId: "01HZX3Q4N8F0V9C2T7R5K1M6AB", Data: make([]byte, 60)})
	if err != nil {
		b.Fatal(err)
	}
	typ := []byte("muster.v1.OutputChunk")
	m := &message{buf: slices.Concat(typ, env, body), frames: 3}
	m.ends = [3]int{len(typ), len(typ) + len(env), len(m.buf)}
	p := &Peer{bus: newCore(Config{}, mux)}
	b.ReportAllocs()
	for b.Loop() {
		if err := dispatch(p, m); err != nil {
			b.Fatal(err)
		}
	}
}
