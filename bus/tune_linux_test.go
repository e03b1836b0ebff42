package bus

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel notices a TCP peer that is gone without a word.
func TestTune(t *testing.T) {
	ln, err := Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := Dial(t.Context(), "tcp://"+ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	tune(nc)
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, name int) (v int) {
		raw.Control(func(fd uintptr) { v, err = unix.GetsockoptInt(int(fd), level, name) })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); v != 30_000 {
		t.Errorf("TCP_USER_TIMEOUT %d ms, want 30 s", v)
	}
	if option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 1 || option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) != 15 {
		t.Error("keepalive is not set")
	}
	if option(unix.IPPROTO_TCP, unix.TCP_NODELAY) != 1 {
		t.Error("small messages would wait for others")
	}
}
