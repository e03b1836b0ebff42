//go:build unix

package bus

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// direct writes to a socket what the kernel takes at once, and never waits.
// Only one may write at a time.
type direct struct {
	raw syscall.RawConn // nil: not a socket
	try func(fd uintptr)
	b   []byte
	n   int
}

func (d *direct) init(nc net.Conn) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	d.raw = raw
	d.try = func(fd uintptr) { d.n, _ = unix.Write(int(fd), d.b) }
}

// write returns how much of b was written. An error is nothing written: a
// writer will find it, too.
func (d *direct) write(b []byte) int {
	if d.raw == nil {
		return 0
	}
	d.b, d.n = b, 0
	d.raw.Control(d.try)
	d.b = nil
	return max(d.n, 0)
}
