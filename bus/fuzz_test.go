package bus_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fuzzRouter runs a router and returns a way to reach it.
func fuzzRouter(f *testing.F, sec bus.Security) bus.Dialer {
	mux := bus.NewMux()
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Register) error {
		p.Promote()
		return p.Reply(env, &musterv1.Registered{})
	})
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.OutputChunk) error {
		return p.Reply(env, m)
	})
	net := bustest.NewNet()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- bus.NewRouter(bus.Config{}, mux).Serve(ctx, net, sec) }()
	f.Cleanup(func() { cancel(); <-ended })
	return net.Dial
}

// mustEnd sends b and nothing more: the router has to close, and soon.
func mustEnd(t *testing.T, dial bus.Dialer, b []byte) {
	nc, err := dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	mustClose(t, nc, b)
}

// mustClose sends b, and nothing more, on a connection that there is.
func mustClose(t *testing.T, nc net.Conn, b []byte) {
	go func() {
		nc.Write(b)
		nc.(interface{ CloseWrite() error }).CloseWrite()
	}()
	nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, nc); err != nil {
		t.Fatalf("the router did not close: %v", err)
	}
}

// FuzzConnection sends any bytes from the first on.
func FuzzConnection(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "zmtp", "*.bin"))
	if err != nil || len(files) == 0 {
		f.Fatal("no streams", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	dial := fuzzRouter(f, bus.Null())
	f.Fuzz(func(t *testing.T, b []byte) { mustEnd(t, dial, b) })
}

// FuzzTraffic sends any bytes after a good handshake.
func FuzzTraffic(f *testing.F) {
	hello := stream(f, "good-null-dealer")
	files, err := filepath.Glob(filepath.Join("testdata", "zmtp", "*.bin"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && len(b) > len(hello) {
			f.Add(b[len(hello):])
		}
	}
	f.Add(multi([]byte("muster.v1.Register"), nil, nil))
	f.Add(multi([]byte("muster.v1.OutputChunk"), []byte{0x0a, 1, 'q'}, []byte{0x22, 2, 0, 1}))
	f.Add(command("PING", 0, 1, 'x'))
	dial := fuzzRouter(f, bus.Null())
	f.Fuzz(func(t *testing.T, b []byte) { mustEnd(t, dial, append(hello[:len(hello):len(hello)], b...)) })
}

// curveClient makes a router with CURVE and a client for it.
func curveClient(f *testing.F) (bus.Dialer, *curve.Client) {
	public, secret := newKeys(f)
	_, own := newKeys(f)
	return fuzzRouter(f, bus.CurveServer(secret, everybody)), curve.NewClient(own, public)
}

// FuzzCurveHandshake goes so far through the handshake of CURVE, and then sends
// any bytes, or its own command with bytes of it changed.
func FuzzCurveHandshake(f *testing.F) {
	dial, client := curveClient(f)
	f.Add(0, 0, []byte{})
	f.Add(0, 199, []byte{1})
	f.Add(0, 6, []byte{2, 0})
	f.Add(1, 0, []byte{})
	f.Add(1, 9, []byte("cookie"))
	f.Add(1, 250, []byte{0xff})
	f.Add(2, 0, command("INITIATE", make([]byte, 248)...))
	f.Add(3, 0, command("READY", property("Socket-Type", "DEALER")...))
	for _, name := range []string{"mech-CURVE_X", "cmd-error", "frame-len-2p62", "good-null-dealer"} {
		b := stream(f, name)
		f.Add(2, 0, b[min(64, len(b)):])
		f.Add(3, 0, b[min(64, len(b)):])
	}
	f.Fuzz(func(t *testing.T, how, at int, b []byte) {
		nc, err := dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(10 * time.Second))
		h := client.Handshake()
		hello, err := h.Hello()
		if err != nil {
			t.Fatal(err)
		}
		prologue := curveGreeting(t)
		switch how & 3 {
		case 0:
			mustClose(t, nc, append(prologue, frame(4, changed(hello, at, b))...))
			return
		case 2:
			mustClose(t, nc, append(prologue, b...))
			return
		}
		answer := make([]byte, 64+2+168)
		go nc.Write(append(prologue, frame(4, hello)...))
		if _, err := io.ReadFull(nc, answer); err != nil {
			t.Fatal(err)
		}
		if err := h.Welcome(answer[66:]); err != nil {
			t.Fatal(err)
		}
		if how&3 == 3 {
			mustClose(t, nc, b)
			return
		}
		initiate, err := h.Initiate(curve.Metadata{"Socket-Type": "DEALER"})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, nc, frame(4, changed(initiate, at, b)))
	})
}

// changed overwrites bytes of command, and may make it longer.
func changed(command []byte, at int, b []byte) []byte {
	at = int(uint(at) % uint(len(command)+1))
	command = append(command, make([]byte, max(0, at+len(b)-len(command)))...)
	copy(command[at:], b)
	return command
}

// FuzzCurveTraffic sends any frames after a good handshake, each in a MESSAGE, and
// then any bytes.
func FuzzCurveTraffic(f *testing.F) {
	dial, client := curveClient(f)
	f.Add([]byte{}, []byte{})
	f.Add([]byte{1, 18}, []byte("muster.v1.Register"))
	f.Add([]byte{1, 0, 0, 0}, []byte{})
	f.Add([]byte{2, 7}, []byte("\x04PING\x00\x00"))
	hello := stream(f, "good-null-dealer")
	files, err := filepath.Glob(filepath.Join("testdata", "zmtp", "*.bin"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && len(b) > len(hello) {
			f.Add([]byte{1, 5, 2, 9, 0, 200}, b[len(hello):])
		}
	}
	f.Fuzz(func(t *testing.T, shape, b []byte) {
		nc, err := dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(10 * time.Second))
		p := &benchPeer{Conn: nc}
		p.shake(t, client)
		var out []byte
		r := &raw{crypt: p.crypt}
		for len(shape) >= 2 { // flags and size of a frame
			n := min(int(shape[1]), len(b))
			flags := shape[0] & 3
			if flags == 3 {
				flags = curve.Command
			}
			out = append(out, r.sealFrame(flags, b[:n])...)
			shape, b = shape[2:], b[n:]
		}
		mustClose(t, nc, append(out, b...))
	})
}
