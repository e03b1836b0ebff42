package bus_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var sample = &musterv1.OutputChunk{CommandId: "01HZX3Q4N8F0V9C2T7R5K1M6AB", Data: make([]byte, 60)}

func sampleMessage(b *testing.B) []byte {
	body, err := proto.Marshal(sample)
	if err != nil {
		b.Fatal(err)
	}
	return multi([]byte("muster.v1.OutputChunk"), nil, body)
}

func BenchmarkSeal(b *testing.B) {
	env := &musterv1.Envelope{Id: "01HZX3Q4N8F0V9C2T7R5K1M6AC"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.Seal(env, sample); err != nil {
			b.Fatal(err)
		}
	}
}

// nullOrCurve runs a benchmark twice.
func nullOrCurve(b *testing.B, bench func(b *testing.B, sealed bool)) {
	b.Run("NULL", func(b *testing.B) { bench(b, false) })
	b.Run("CURVE", func(b *testing.B) { bench(b, true) })
}

// BenchmarkReceive is what one message costs from the bytes to its callback.
func BenchmarkReceive(b *testing.B) {
	nullOrCurve(b, func(b *testing.B, sealed bool) {
		mux := bus.NewMux()
		done := make(chan struct{})
		left := b.N
		bus.Handle(mux, func(*bus.Peer, *musterv1.Envelope, *musterv1.OutputChunk) error {
			if left--; left == 0 {
				close(done)
			}
			return nil
		})
		near := newBenchPeer(b, mux, sealed)
		one := sampleMessage(b)
		var many []byte
		for range b.N {
			many = append(many, one...)
		}
		many = near.seal(many)
		b.ReportAllocs()
		b.ResetTimer()
		if _, err := near.Write(many); err != nil {
			b.Fatal(err)
		}
		<-done
	})
}

// BenchmarkRoundTrip sends one message, waits for its answer, and so on, on one
// TCP link. What the other side costs is in it.
func BenchmarkRoundTrip(b *testing.B) {
	nullOrCurve(b, func(b *testing.B, sealed bool) {
		mux := bus.NewMux()
		bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.OutputChunk) error {
			return p.Reply(env, m)
		})
		near := newBenchPeer(b, mux, sealed)
		one := sampleMessage(b)
		answer := make([]byte, len(near.seal(one)))
		if sealed { // that took nonces
			near = newBenchPeer(b, mux, sealed)
		}
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			near.Write(near.seal(one))
			if _, err := io.ReadFull(near, answer); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkHandshake is a connection up to its first message, both sides of it.
func BenchmarkHandshake(b *testing.B) {
	nullOrCurve(b, func(b *testing.B, sealed bool) {
		up := make(chan struct{}, 1)
		mux := bus.NewMux()
		mux.Up = func(*bus.Peer) { up <- struct{}{} }
		at := newBenchRouter(b, mux, sealed)
		b.ReportAllocs()
		for b.Loop() {
			at.enter(b).Close()
			<-up
		}
	})
}

// benchRouter is a router on loopback.
type benchRouter struct {
	addr   string
	client *curve.Client // nil: NULL
}

func newBenchRouter(b *testing.B, mux *bus.Mux, sealed bool) *benchRouter {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	at := &benchRouter{addr: "tcp://" + ln.Addr().String()}
	sec := bus.Null()
	if sealed {
		public, secret := newKeys(b)
		_, own := newKeys(b)
		sec, at.client = bus.CurveServer(secret, everybody), curve.NewClient(own, public)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { bus.NewRouter(bus.Config{}, mux).Serve(ctx, ln, sec) })
	b.Cleanup(func() { cancel(); wg.Wait() })
	return at
}

// benchPeer is a raw peer that has shaken hands.
type benchPeer struct {
	net.Conn
	crypt *curve.Session
}

func newBenchPeer(b *testing.B, mux *bus.Mux, sealed bool) *benchPeer {
	p := newBenchRouter(b, mux, sealed).enter(b)
	b.Cleanup(func() { p.Close() })
	return p
}

func (at *benchRouter) enter(b *testing.B) *benchPeer {
	nc, err := bus.Dial(context.Background(), at.addr)
	if err != nil {
		b.Fatal(err)
	}
	p := &benchPeer{Conn: nc}
	if at.client == nil {
		p.exchange(b, stream(b, "good-null-dealer"), len(routerHello(b)))
		return p
	}
	p.shake(b, at.client)
	return p
}

// shake shakes hands with CURVE.
func (p *benchPeer) shake(b testing.TB, client *curve.Client) {
	h := client.Handshake()
	hello, err := h.Hello()
	if err != nil {
		b.Fatal(err)
	}
	answer := p.exchange(b, append(curveGreeting(b), frame(4, hello)...), 64+2+168)
	if err := h.Welcome(answer[66:]); err != nil {
		b.Fatal(err)
	}
	initiate, err := h.Initiate(curve.Metadata{"Socket-Type": "DEALER"})
	if err != nil {
		b.Fatal(err)
	}
	ready := p.exchange(b, frame(4, initiate), 2)
	ready = p.exchange(b, nil, int(ready[1]))
	if _, p.crypt, err = h.Ready(ready); err != nil {
		b.Fatal(err)
	}
}

// exchange writes ask and reads an answer of n bytes.
func (p *benchPeer) exchange(b testing.TB, ask []byte, n int) []byte {
	if _, err := p.Write(ask); err != nil {
		b.Fatal(err)
	}
	answer := make([]byte, n)
	if _, err := io.ReadFull(p, answer); err != nil {
		b.Fatal(err)
	}
	return answer
}

func (p *benchPeer) seal(frames []byte) []byte {
	if p.crypt == nil {
		return frames
	}
	return (&raw{crypt: p.crypt}).seal(frames)
}
