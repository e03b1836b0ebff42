package bus

import (
	"slices"

	"github.com/musterhq/muster/bus/curve"
	"github.com/musterhq/muster/scripts/benchmark/load"
	"github.com/musterhq/muster/scripts/benchmark/server"
)

// The servers that are compared.
const (
	echo        = "raw TCP echo in Go"
	libzmq      = "libzmq ROUTER"
	zmq4        = "zmq4 ROUTER"
	muster      = "muster"
	libzmqCurve = "libzmq ROUTER, CURVE"
	musterCurve = "muster, CURVE"
)

// contestant is a way to run a server. Of several with one name the faster
// counts.
type contestant struct {
	name  string
	short string // for -only
	argv  []string
	raw   bool
}

func contestants(cfg Config) []contestant {
	serve := func(kind string) []string { return []string{cfg.Program, "serve", kind} }
	all := []contestant{
		{name: echo, short: "echo", argv: serve("echo"), raw: true},
		{name: libzmq, short: "libzmq", argv: []string{cfg.Libzmq, "1"}},
		{name: muster, short: "muster", argv: serve("muster")},
		{name: libzmq, short: "libzmq", argv: []string{cfg.Libzmq, "2"}},
		{name: libzmqCurve, short: "libzmq-curve", argv: []string{cfg.Libzmq, "1", "curve"}},
		{name: musterCurve, short: "muster-curve", argv: serve("muster-curve")},
		{name: libzmqCurve, short: "libzmq-curve", argv: []string{cfg.Libzmq, "2", "curve"}},
		{name: zmq4, short: "zmq4", argv: serve("zmq4")},
	}
	if len(cfg.Only) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c contestant) bool { return !slices.Contains(cfg.Only, c.short) })
}

// security is how the peers of c greet its server.
func (c contestant) security(p *server.Process) (load.Security, error) {
	if p.Key == "" {
		return load.Security{Raw: c.raw}, nil
	}
	key, err := curve.ParsePublicKey(p.Key)
	if err != nil {
		return load.Security{}, err
	}
	_, secret, err := curve.NewKeyPair()
	if err != nil {
		return load.Security{}, err
	}
	return load.Security{Client: curve.NewClient(secret, key)}, nil
}
