package northbound

import (
	"net"

	"golang.org/x/sys/unix"
)

// setUserTimeout has the kernel end a connection whose other side is gone
// without a word: what we sent, if only a keep-alive comment, stays without
// acknowledgement this long.
func setUserTimeout(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // already closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(keepAlive.Milliseconds()))
	})
}
