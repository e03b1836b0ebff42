package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator"
)

// keyFile is in the data folder of `up`: the coordinator's secret key.
const keyFile = "curve.key"

// southbound says how agents are let in.
type southbound struct {
	endpoints []string
	curve     bool // also on loopback and ipc
	insecure  bool // no encryption, wherever it listens
}

// gate is one open listener for agents.
type gate struct {
	net.Listener
	curve bool
}

// endpoint is where agents find the gate. A gate on all addresses is named by
// one that other hosts can reach.
func (g gate) endpoint() string {
	if g.Addr().Network() == "unix" {
		return "ipc://" + g.Addr().String()
	}
	tcp, ok := g.Addr().(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return "tcp://" + g.Addr().String()
	}
	return fmt.Sprintf("tcp://%s", net.JoinHostPort(outwardIP(), fmt.Sprint(tcp.Port)))
}

// outwardIP is an address of this host that is not its loopback's, if it has
// one.
func outwardIP() string {
	addrs, _ := net.InterfaceAddrs() // none found is answered below
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// open opens every listener, or none. One on loopback or ipc speaks NULL unless
// curve is asked for; any other speaks CURVE unless insecure is.
func (s southbound) open() (gates []gate, err error) {
	defer func() {
		if err != nil {
			for _, g := range gates {
				g.Close()
			}
			gates = nil
		}
	}()
	if s.curve && s.insecure {
		return nil, usagef("--curve and --insecure-southbound exclude each other")
	}
	for _, endpoint := range s.endpoints {
		ln, err := bus.Listen(endpoint)
		if err != nil {
			return gates, fmt.Errorf("--listen-agents %s: %w", endpoint, err)
		}
		g := gate{Listener: ln, curve: s.curve}
		if tcp, ok := ln.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			g.curve = !s.insecure
		}
		gates = append(gates, g)
	}
	return gates, nil
}

// security is what a gate asks of those who come.
func (g gate) security(secret bus.SecretKey, c *coordinator.Coordinator) bus.Security {
	if g.curve {
		return bus.CurveServer(secret, c.Authorize)
	}
	return bus.Null()
}

// joinLine is the command that starts an agent on another host.
func joinLine(endpoint string, key bus.PublicKey) string {
	return fmt.Sprintf("muster-agentd --coordinator %s --server-key '%s' --data DIR", endpoint, strings.ReplaceAll(key.String(), "'", `'\''`))
}
