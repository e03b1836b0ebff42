package bus_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var sample = &musterv1.OutputChunk{CommandId: "01HZX3Q4N8F0V9C2T7R5K1M6AB", Data: make([]byte, 60)}

func BenchmarkSeal(b *testing.B) {
	env := &musterv1.Envelope{Id: "01HZX3Q4N8F0V9C2T7R5K1M6AC"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.Seal(env, sample); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReceive is what one message costs from the bytes to its callback.
func BenchmarkReceive(b *testing.B) {
	mux := bus.NewMux()
	done := make(chan struct{})
	left := b.N
	bus.Handle(mux, func(*bus.Peer, *musterv1.Envelope, *musterv1.OutputChunk) error {
		if left--; left == 0 {
			close(done)
		}
		return nil
	})
	near := benchPeer(b, mux)
	body, err := proto.Marshal(sample)
	if err != nil {
		b.Fatal(err)
	}
	one := multi([]byte("muster.v1.OutputChunk"), nil, body)
	var many []byte
	for range 100 {
		many = append(many, one...)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := b.N; n > 0; n -= 100 {
		if _, err := near.Write(many[:min(n, 100)*len(one)]); err != nil {
			b.Fatal(err)
		}
	}
	<-done
}

// BenchmarkRoundTrip sends one message, waits for its answer, and so on, on one
// TCP link.
func BenchmarkRoundTrip(b *testing.B) {
	mux := bus.NewMux()
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.OutputChunk) error {
		return p.Reply(env, m)
	})
	near := benchPeer(b, mux)
	body, err := proto.Marshal(sample)
	if err != nil {
		b.Fatal(err)
	}
	one := multi([]byte("muster.v1.OutputChunk"), nil, body)
	answer := make([]byte, len(one))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		near.Write(one)
		if _, err := io.ReadFull(near, answer); err != nil {
			b.Fatal(err)
		}
	}
}

// benchPeer runs a router and returns a raw peer that has shaken hands.
func benchPeer(b *testing.B, mux *bus.Mux) net.Conn {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { bus.NewRouter(bus.Config{}, mux).Serve(ctx, ln, bus.Null()) })
	b.Cleanup(func() { cancel(); wg.Wait() })
	nc, err := bus.Dial(ctx, "tcp://"+ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	if _, err := nc.Write(stream(b, "good-null-dealer")); err != nil {
		b.Fatal(err)
	}
	hello := make([]byte, len(routerHello(b)))
	if _, err := io.ReadFull(nc, hello); err != nil {
		b.Fatal(err)
	}
	return nc
}
