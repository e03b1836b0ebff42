//go:build !linux

package bus

import (
	"net"
	"time"
)

// tune makes the kernel notice a TCP peer that is gone without a word.
func tune(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
}
