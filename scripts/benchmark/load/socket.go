package load

import (
	"fmt"
	"io"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a TCP socket without Go's poller around it.
type socket int

const handshakeTime = 20 * time.Second

// dial connects to addr from an address of the loopback network, for one
// address alone has too few ports when a fleet comes anew again and again. The
// socket blocks, each read and write for at most handshakeTime.
func dial(from netip.Addr, addr netip.AddrPort, receiveBuffer int) (s socket, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	limit := unix.NsecToTimeval(handshakeTime.Nanoseconds())
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	// Closed by a reset, so that no port is left waiting.
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if receiveBuffer > 0 {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
		return 0, fmt.Errorf("bind to %v: %w", from, err)
	}
	// Go's scheduler sends signals; interrupted, it goes on when called again.
	to := &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	_, err = uninterrupted(func() (int, error) { return 0, unix.Connect(fd, to) })
	if err != nil && err != unix.EISCONN {
		return 0, fmt.Errorf("connect to %v: %w", addr, err)
	}
	return socket(fd), nil
}

func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

// Read and Write are for the handshake.
func (s socket) Read(b []byte) (int, error) {
	n, err := uninterrupted(func() (int, error) { return unix.Read(int(s), b) })
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

func (s socket) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := uninterrupted(func() (int, error) { return unix.Write(int(s), b[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}

func (s socket) close() { unix.Close(int(s)) }

// receive and send do not block, and so need not tell Go's scheduler. b is not
// empty.
func (s socket) receive(b []byte) (int, unix.Errno) {
	return transfer(unix.SYS_RECVFROM, s, b)
}

func (s socket) send(b []byte) (int, unix.Errno) {
	return transfer(unix.SYS_SENDTO, s, b)
}

func transfer(call uintptr, s socket, b []byte) (int, unix.Errno) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	for {
		n, _, errno := unix.RawSyscall6(call, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
