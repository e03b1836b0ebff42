package bus_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus"
)

func TestEndpoints(t *testing.T) {
	for _, c := range []struct{ listen, dial string }{
		{"tcp://127.0.0.1:0", "tcp://127.0.0.1:PORT"},
		{"tcp://[::1]:0", "tcp://[::1]:PORT"},
		{"tcp://localhost:0", "tcp://localhost:PORT"},
		{"tcp://*:0", "tcp://127.0.0.1:PORT"},
		{"ipc://DIR/bus.sock", "ipc://DIR/bus.sock"},
	} {
		t.Run(c.listen, func(t *testing.T) {
			dir := strings.NewReplacer("DIR", t.TempDir())
			ln, err := bus.Listen(dir.Replace(c.listen))
			if err != nil {
				t.Fatal(err)
			}
			s := buildStation(t, bus.Config{})
			s.serve(ln)
			s.dial = bus.Dial
			_, port, _ := net.SplitHostPort(ln.Addr().String())
			s.addr = strings.ReplaceAll(dir.Replace(c.dial), "PORT", port)
			s.enter().served()
		})
	}
}

func TestEndpointsThatAreNone(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://", "tcp://host", "tcp://host:", "127.0.0.1:7600", "udp://127.0.0.1:1", "ipc://", "inproc://x", "tcp://[::1:7600", "tcp://h:1:2"} {
		if ln, err := bus.Listen(endpoint); err == nil {
			ln.Close()
			t.Errorf("listens on %q", endpoint)
		} else if !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%v does not name %q", err, endpoint)
		}
		if nc, err := bus.Dial(context.Background(), endpoint); err == nil {
			nc.Close()
			t.Errorf("dials %q", endpoint)
		}
	}
}

func TestSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus.sock")
	endpoint := "ipc://" + path
	ln, err := bus.Listen(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := bus.Listen(endpoint); err == nil {
		other.Close()
		t.Fatal("took the file of a living process")
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as after kill -9
	ln.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	ln, err = bus.Listen(endpoint)
	if err != nil {
		t.Fatalf("a stale file is in the way: %v", err)
	}
	ln.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := bus.Listen(endpoint); err == nil {
		ln.Close()
		t.Error("replaced a file that is no socket")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file now holds %q, %v", b, err)
	}
}

func TestAddr(t *testing.T) {
	s := newTCPStation(t, bus.Config{})
	r := s.enter()
	r.served()
	if got, want := s.peers()[0].Addr().String(), r.LocalAddr().String(); got != want {
		t.Errorf("addr %s, want %s", got, want)
	}
}
