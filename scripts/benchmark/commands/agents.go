package commands

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/bus"
)

// runAgents is the program of a fleet: simulated agents on real Dealers. It obeys
// orders until its input ends.
func runAgents(ctx context.Context, args []string) error {
	var f fleet
	var keys, serverKey string
	fs := flag.NewFlagSet("agents", flag.ContinueOnError)
	fs.StringVar(&f.endpoint, "coordinator", "", "endpoint of the coordinator")
	fs.IntVar(&f.size, "agents", 100, "how many")
	fs.StringVar(&keys, "keys", "", "file with their secret keys, one a line")
	fs.StringVar(&serverKey, "server-key", "", "public key of the coordinator")
	if err := fs.Parse(args); err != nil {
		return err
	}
	f.result = resultOf(resultSize)
	f.runID = rand.Text()
	if err := f.make(keys, serverKey); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx) })
	err := obey(os.Stdin, os.Stdout, map[string]func(string) (any, error){
		"tally": func(string) (any, error) { return f.tally.now(), nil },
		"beat":  f.beat,
	})
	cancel()
	running.Wait()
	return err
}

// resultSize is the JSON that each command gives as its result.
const resultSize = 300

func resultOf(n int) []byte { return []byte(`"` + strings.Repeat("r", n-2) + `"`) }

// fleet is simulated agents of one process.
type fleet struct {
	endpoint string
	size     int
	result   []byte
	runID    string
	agents   []*agent
	tally    tally
	interval atomic.Int64 // between two beats; 0: as the coordinator says
}

// tally counts what the agents did.
type tally struct {
	registered, registrations, results, acks, beats, errors atomic.Int64
}

// Tally is what a fleet says of itself.
type Tally struct {
	Registered    int64 // now
	Registrations int64 // since it began
	Results       int64 // sent
	Acks          int64 // of results
	Beats         int64 // that were answered
	Errors        int64
}

func (t *tally) now() Tally {
	return Tally{t.registered.Load(), t.registrations.Load(), t.results.Load(), t.acks.Load(), t.beats.Load(), t.errors.Load()}
}

// make makes the agents; with a file of keys they speak CURVE.
func (f *fleet) make(keys, serverKey string) error {
	security := func(int) (bus.Security, error) { return bus.Null(), nil }
	if keys != "" {
		server, err := bus.ParsePublicKey(serverKey)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(keys)
		if err != nil {
			return err
		}
		lines := strings.Fields(string(b))
		if len(lines) < f.size {
			return fmt.Errorf("%s: %d keys for %d agents", keys, len(lines), f.size)
		}
		security = func(n int) (bus.Security, error) {
			secret, err := bus.ParseSecretKey(lines[n])
			if err != nil {
				return nil, err
			}
			return bus.CurveClient(secret, server), nil
		}
	}
	for n := range f.size {
		sec, err := security(n)
		if err != nil {
			return fmt.Errorf("key of agent %d: %w", n, err)
		}
		f.agents = append(f.agents, newAgent(f, n, sec))
	}
	return nil
}

// arrivals is how many agents a second begin; a restart brings them all at once.
const arrivals = 2000

func (f *fleet) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n, a := range f.agents {
		if n%(arrivals/100) == 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		running.Go(func() { a.dealer.Run(ctx) })
	}
	<-ctx.Done()
}

// beat is the order to beat at another interval; the answer comes when all do.
func (f *fleet) beat(argument string) (any, error) {
	d, err := time.ParseDuration(argument)
	if err != nil {
		return nil, err
	}
	f.interval.Store(int64(d))
	for _, a := range f.agents {
		a.rest()
	}
	return nil, nil
}

// sources is how many addresses the agents come from, so that there are ports
// enough.
const sources = 16

// dialFrom dials from the n-th of the addresses of the loopback network.
func dialFrom(ctx context.Context, n int, addr string) (net.Conn, error) {
	d := net.Dialer{
		KeepAlive: -1,
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%sources))},
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			if cerr := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			}); cerr != nil {
				return cerr
			}
			return err
		},
	}
	return d.DialContext(ctx, "tcp", addr)
}

// obey answers orders, a line each, until in ends. A verb's argument is the rest
// of its line.
func obey(in io.Reader, out io.Writer, verbs map[string]func(argument string) (any, error)) error {
	orders := bufio.NewScanner(in)
	for orders.Scan() {
		verb, argument, _ := strings.Cut(orders.Text(), " ")
		var answer any
		err := errors.New("no such order")
		if fn := verbs[verb]; fn != nil {
			answer, err = fn(argument)
		}
		if err := reply(out, answer, err); err != nil {
			return err
		}
	}
	return orders.Err()
}
