package main

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// manyLoopbacks says that all of 127.0.0.0/8 is this machine.
const manyLoopbacks = true

// bindWithoutPort makes the kernel choose the port of a socket when it connects: it
// may then be one that is in use towards somebody else.
func bindWithoutPort(_, _ string, raw syscall.RawConn) (err error) {
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); cerr != nil {
		return cerr
	}
	return err
}

const otherFiles = 32 // that a process has open besides the links

// checkSockets says whether so many links may be open. The Go runtime has raised
// the limit as far as it goes.
func checkSockets(agents int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if uint64(agents)+otherFiles > limit.Max {
		return fmt.Errorf("--agents %d: this process may have %d files open, so at most %d links: start a second one with another --prefix, or raise the limit (ulimit -n)",
			agents, limit.Max, max(limit.Max, otherFiles)-otherFiles)
	}
	return nil
}
