package bus

import (
	"net"
	"syscall"
	"unsafe"

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
	d.try = d.tryWrite
}

// tryWrite is write(2) without telling the scheduler: the socket does not block,
// so there is nothing to make room for.
func (d *direct) tryWrite(fd uintptr) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&d.b[0])), uintptr(len(d.b)))
	if errno == 0 {
		d.n = int(n)
	}
}

// write returns how much of b was written. An error is nothing written: a
// writer will find it, too.
func (d *direct) write(b []byte) int {
	if d.raw == nil || len(b) == 0 {
		return 0
	}
	d.b, d.n = b, 0
	d.raw.Control(d.try)
	d.b = nil
	return max(d.n, 0)
}
