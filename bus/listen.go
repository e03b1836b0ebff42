package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Listen listens on an endpoint: tcp://HOST:PORT, where HOST may be a name,
// an IPv4 address, an IPv6 address in brackets or * for all, or ipc://PATH. A
// socket file that no process listens on any more is replaced; the file is
// removed when the listener closes.
func Listen(endpoint string) (net.Listener, error) {
	network, addr, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen(network, addr)
	if network == "unix" && errors.Is(err, syscall.EADDRINUSE) && removeStale(addr) {
		ln, err = net.Listen(network, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return ln, nil
}

// Dial connects to an endpoint of the forms that Listen knows. Names are
// resolved at each call.
func Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	network, addr, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

func splitEndpoint(endpoint string) (network, addr string, err error) {
	scheme, addr, _ := strings.Cut(endpoint, "://")
	switch scheme {
	case "tcp":
		host, port, err := net.SplitHostPort(addr)
		if err != nil || port == "" {
			return "", "", fmt.Errorf("endpoint %q: want tcp://HOST:PORT", endpoint)
		}
		if host == "*" {
			host = ""
		}
		return "tcp", net.JoinHostPort(host, port), nil
	case "ipc":
		if addr == "" {
			return "", "", fmt.Errorf("endpoint %q: want ipc://PATH", endpoint)
		}
		return "unix", addr, nil
	}
	return "", "", fmt.Errorf("endpoint %q: want tcp://HOST:PORT or ipc://PATH", endpoint)
}

// removeStale removes a socket file on which nobody listens.
func removeStale(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	nc, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		nc.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED) && os.Remove(path) == nil
}
