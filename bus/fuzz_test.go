package bus_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fuzzRouter runs a router and returns a way to reach it.
func fuzzRouter(f *testing.F) bus.Dialer {
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
	go func() { ended <- bus.NewRouter(bus.Config{}, mux).Serve(ctx, net, bus.Null()) }()
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
	dial := fuzzRouter(f)
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
	dial := fuzzRouter(f)
	f.Fuzz(func(t *testing.T, b []byte) { mustEnd(t, dial, append(hello[:len(hello):len(hello)], b...)) })
}
