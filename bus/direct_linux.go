package bus

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// direct reads from and writes to a socket without telling the scheduler: the
// socket does not block, so there is nothing to make room for. One may read and
// another write at a time.
type direct struct {
	raw syscall.RawConn // nil: not a socket
	in  directRead
	out directWrite
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
	d.in.try, d.out.try = d.in.recv, d.out.send
}

// directRead is a read under way.
type directRead struct {
	try func(fd uintptr) bool
	b   []byte
	n   int // or an errno, negative
}

// recv is recv(2), which costs less than read(2). It says whether it is over.
func (r *directRead) recv(fd uintptr) (done bool) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&r.b[0])), uintptr(len(r.b)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		if r.n = int(n); errno != 0 {
			r.n = -int(errno)
		}
		return true
	}
}

// read is nc.Read.
func (d *direct) read(nc net.Conn, b []byte) (int, error) {
	if d.raw == nil || len(b) == 0 {
		return nc.Read(b)
	}
	d.in.b, d.in.n = b, 0
	err := d.raw.Read(d.in.try)
	d.in.b = nil
	switch n := d.in.n; {
	case err != nil:
		return 0, err
	case n < 0:
		return 0, readError(nc, syscall.Errno(-n))
	case n == 0:
		return 0, io.EOF
	default:
		return n, nil
	}
}

//go:noinline
func readError(nc net.Conn, errno syscall.Errno) error {
	err := os.NewSyscallError("recv", errno)
	return &net.OpError{Op: "read", Net: nc.RemoteAddr().Network(), Source: nc.LocalAddr(), Addr: nc.RemoteAddr(), Err: err}
}

// directWrite is a write under way.
type directWrite struct {
	try func(fd uintptr)
	b   []byte
	n   int
}

// send is send(2), which costs less than write(2).
func (w *directWrite) send(fd uintptr) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&w.b[0])), uintptr(len(w.b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno == 0 {
		w.n = int(n)
	}
}

// write writes what the kernel takes of b at once, and returns how much that was.
// An error is nothing written: a writer will find it, too.
func (d *direct) write(b []byte) int {
	if d.raw == nil || len(b) == 0 {
		return 0
	}
	d.out.b, d.out.n = b, 0
	d.raw.Control(d.out.try)
	d.out.b = nil
	return d.out.n
}
