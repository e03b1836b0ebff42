//go:build !linux

package northbound

import "net"

// setUserTimeout is Linux's; elsewhere TCP's own retries end a dead connection.
func setUserTimeout(net.Conn) {}
