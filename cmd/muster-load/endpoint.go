package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// endpoint is where the agents connect.
type endpoint struct {
	network string
	address string     // with the host as an IP address, so that it stays what it was checked to be
	host    netip.Addr // of it; not valid for a socket file
}

// resolve finds the coordinator that text names. Unless anywhere is set it must be
// on this machine: ten thousand agents are not a thing to send elsewhere by a
// slip.
func resolve(ctx context.Context, text string, anywhere bool) (to endpoint, err error) {
	scheme, rest, _ := strings.Cut(text, "://")
	switch scheme {
	case "ipc":
		if rest != "" {
			return endpoint{network: "unix", address: rest}, nil
		}
	case "tcp":
		if host, port, err := net.SplitHostPort(rest); err == nil && host != "" && port != "" {
			return resolveTCP(ctx, text, host, port, anywhere)
		}
	}
	return to, fmt.Errorf("--coordinator %q: want tcp://HOST:PORT or ipc://PATH", text)
}

func resolveTCP(ctx context.Context, text, host, port string, anywhere bool) (to endpoint, err error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return to, fmt.Errorf("--coordinator %q: %w", text, err)
	}
	at := addrs[0].Unmap()
	for _, addr := range addrs { // a listener on 127.0.0.1 is what most have
		if addr.Unmap().Is4() {
			at = addr.Unmap()
			break
		}
	}
	if !at.IsLoopback() && !anywhere {
		return to, fmt.Errorf("--coordinator %q: %v is not this machine; --anywhere allows it", text, at)
	}
	return endpoint{network: "tcp", address: net.JoinHostPort(at.String(), port), host: at}, nil
}

// sources is how many addresses of this machine agents connect from, so that there
// are ports enough: each has about 28,000 for one coordinator.
const sources = 16

// dial opens the connection of agent n.
func (to endpoint) dial(ctx context.Context, n int) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // agents beat
	if manyLoopbacks && to.host.Is4() && to.host.IsLoopback() {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%sources))}
		d.Control = bindWithoutPort
	}
	return d.DialContext(ctx, to.network, to.address)
}
