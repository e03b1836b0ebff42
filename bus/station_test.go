package bus_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// station is a router that runs until the test ends. It answers Heartbeat with
// HeartbeatAck and Register with Registered.
type station struct {
	t      *testing.T
	router *bus.Router
	mux    *bus.Mux
	reg    *prometheus.Registry
	addr   string
	dial   bus.Dialer
	sec    bus.Security  // nil: Null
	server bus.PublicKey // with CURVE

	mu    sync.Mutex
	heard []proto.Message // what reached a callback
	up    []*bus.Peer     // links that came up
	down  []error         // why links ended
}

// newStation runs a router on a network in memory.
func newStation(t *testing.T, cfg bus.Config) *station {
	s := buildStation(t, cfg)
	s.serve(newNet(s))
	return s
}

// newNet makes a network in memory, on which s can be reached.
func newNet(s *station) *bustest.Net {
	net := bustest.NewNet()
	s.dial = net.Dial
	return net
}

// newTCPStation runs a router on a port of the loopback interface.
func newTCPStation(t *testing.T, cfg bus.Config) *station {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := buildStation(t, cfg)
	s.addr = "tcp://" + ln.Addr().String()
	s.dial = bus.Dial
	s.serve(ln)
	return s
}

func buildStation(t *testing.T, cfg bus.Config) *station {
	s := &station{t: t, mux: bus.NewMux(), reg: prometheus.NewRegistry()}
	cfg.Log, cfg.Metrics = cmp.Or(cfg.Log, testLog(t)), s.reg
	bus.Handle(s.mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Heartbeat) error {
		s.hear(m)
		return p.Reply(env, &musterv1.HeartbeatAck{SequenceNum: m.SequenceNum})
	})
	bus.Handle(s.mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Register) error {
		s.hear(m)
		p.Promote()
		return p.Reply(env, &musterv1.Registered{SessionId: "s"})
	})
	bus.Handle(s.mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.OutputChunk) error {
		s.hear(m)
		return nil
	})
	s.mux.Up = func(p *bus.Peer) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.up = append(s.up, p)
	}
	s.mux.Down = func(_ *bus.Peer, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.down = append(s.down, err)
	}
	s.router = bus.NewRouter(cfg, s.mux)
	return s
}

func (s *station) serve(ln net.Listener) {
	sec := s.sec
	if sec == nil {
		sec = bus.Null()
	}
	run(s.t, func(ctx context.Context) error { return s.router.Serve(ctx, ln, sec) })
}

// run runs fn until the test ends.
func run(t *testing.T, fn func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := fn(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func (s *station) hear(m proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, m)
}

// heardOf returns how many messages of m's type reached a callback.
func (s *station) heardOf(m proto.Message) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.heard {
		if proto.MessageName(h) == proto.MessageName(m) {
			n++
		}
	}
	return n
}

func (s *station) peers() []*bus.Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.up)
}

func (s *station) ends() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.down)
}

// value returns a counter, gauge or histogram's count by the value of its label.
func (s *station) value(name, label string) float64 {
	families, err := s.reg.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || label != "" && m.GetLabel()[0].GetValue() != label {
				continue
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return 0
}

func (s *station) refused(reason string) float64 {
	return s.value("muster_bus_refused_total", reason)
}

// raw is a peer made of bytes.
type raw struct {
	t *testing.T
	net.Conn
	in    *bufio.Reader
	crypt *curve.Session // nil: NULL
}

// knock connects, and sends b.
func (s *station) knock(b []byte) *raw {
	s.t.Helper()
	nc, err := s.dial(s.t.Context(), s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	r := &raw{t: s.t, Conn: nc, in: bufio.NewReader(nc)}
	r.send(b)
	return r
}

// enter connects and shakes hands.
func (s *station) enter() *raw {
	s.t.Helper()
	if s.sec != nil {
		return s.enterSealed()
	}
	r := s.knock(stream(s.t, "good-null-dealer"))
	r.welcome()
	return r
}

// send writes b, if the router still takes it. With CURVE b has whole frames.
func (r *raw) send(b []byte) {
	if r.crypt != nil {
		b = r.seal(b)
	}
	r.Write(b)
}

// welcome reads the router's greeting and READY.
func (r *raw) welcome() {
	r.t.Helper()
	var greeting [64]byte
	if _, err := io.ReadFull(r.in, greeting[:]); err != nil {
		r.t.Fatal(err)
	}
	if greeting[10] != 3 || greeting[11] != 1 || greeting[32] != 0 {
		r.t.Fatalf("greeting %x, want one of 3.1 without the as-server bit", greeting)
	}
	flags, body, err := r.frame()
	if err != nil || flags != 4 || string(body[:6]) != "\x05READY" {
		r.t.Fatalf("frame %x %q %v, want READY", flags, body, err)
	}
}

// frame reads one frame.
func (r *raw) frame() (flags byte, body []byte, err error) {
	var h [9]byte
	if _, err := io.ReadFull(r.in, h[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(h[1])
	if h[0]&2 != 0 {
		if _, err := io.ReadFull(r.in, h[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(h[1:])
	}
	body = make([]byte, size)
	if _, err := io.ReadFull(r.in, body); err != nil {
		return 0, nil, err
	}
	if r.crypt != nil {
		return r.open(h[0]&^2, body)
	}
	return h[0] &^ 2, body, nil
}

// message reads frames up to the end of a message; commands are messages, too.
func (r *raw) message() (frames [][]byte, command bool, err error) {
	for {
		flags, body, err := r.frame()
		if err != nil {
			return nil, false, err
		}
		frames = append(frames, body)
		if flags&1 == 0 {
			return frames, flags&4 != 0, nil
		}
	}
}

// receive reads messages until one of m's type, and returns its envelope.
func (r *raw) receive(m proto.Message) *musterv1.Envelope {
	r.t.Helper()
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	defer r.SetReadDeadline(time.Time{})
	for {
		frames, command, err := r.message()
		if err != nil {
			r.t.Fatalf("want %T, got %v", m, err)
		}
		if command || len(frames) != 3 || string(frames[0]) != string(proto.MessageName(m)) {
			continue
		}
		var env musterv1.Envelope
		if err := errors.Join(proto.Unmarshal(frames[1], &env), proto.Unmarshal(frames[2], m)); err != nil {
			r.t.Fatal(err)
		}
		return &env
	}
}

// nacked reads a Nack and checks it.
func (r *raw) nacked(typ string, reason musterv1.Nack_Reason) *musterv1.Envelope {
	r.t.Helper()
	var n musterv1.Nack
	env := r.receive(&n)
	if n.Type != typ || n.Reason != reason || n.Detail == "" {
		r.t.Fatalf("nack %v, want %v of %q with a detail", &n, reason, typ)
	}
	return env
}

var beats atomic.Uint64

// served shows that the router still serves the link.
func (r *raw) served() {
	r.t.Helper()
	seq := beats.Add(1)
	r.send(sealed(r.t, &musterv1.Heartbeat{SequenceNum: seq}))
	for {
		var ack musterv1.HeartbeatAck
		if r.receive(&ack); ack.SequenceNum == seq {
			return
		}
	}
}

// closed reads until the router closes, which must be soon.
func (r *raw) closed(within time.Duration) {
	r.t.Helper()
	r.SetReadDeadline(time.Now().Add(within))
	_, err := io.Copy(io.Discard, r.in)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Fatalf("still open after %v", within)
	}
}

// stream returns one of the recorded byte streams.
func stream(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "zmtp", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frame makes one frame.
func frame(flags byte, body []byte) []byte {
	if len(body) <= 255 {
		return append([]byte{flags, byte(len(body))}, body...)
	}
	return append(binary.BigEndian.AppendUint64([]byte{flags | 2}, uint64(len(body))), body...)
}

// multi makes one message.
func multi(frames ...[]byte) (b []byte) {
	for i, f := range frames {
		flags := byte(1)
		if i == len(frames)-1 {
			flags = 0
		}
		b = append(b, frame(flags, f)...)
	}
	return b
}

// command makes a command frame.
func command(name string, body ...byte) []byte {
	return frame(4, append(append([]byte{byte(len(name))}, name...), body...))
}

// property makes a property of metadata.
func property(name, value string) []byte {
	b := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// greeting is a good greeting of a NULL peer.
func greeting(t testing.TB) []byte { return stream(t, "good-null-dealer")[:64] }

// sealed encodes a message with an empty envelope.
func sealed(t testing.TB, m proto.Message) []byte {
	t.Helper()
	body, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return multi([]byte(proto.MessageName(m)), nil, body)
}

// until polls for what happens on another goroutine.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
