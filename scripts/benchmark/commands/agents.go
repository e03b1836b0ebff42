package commands

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// runAgents is the program of a fleet: lean agents, or such on real Dealers. It
// obeys orders until its input ends.
func runAgents(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("agents", flag.ContinueOnError)
	addr := fs.String("coordinator", "", "address of the coordinator, HOST:PORT")
	size := fs.Int("agents", 100, "how many")
	dealers := fs.Bool("dealers", false, "they are on real Dealers, come back after a broken link, and take no commands")
	keys := fs.String("keys", "", "file with the secret keys of those on Dealers, one a line")
	serverKey := fs.String("server-key", "", "public key of the coordinator")
	if err := fs.Parse(args); err != nil {
		return err
	}
	f := newFleet(*addr, *size)
	if *dealers {
		if err := f.makeDealers(*keys, *serverKey); err != nil {
			return err
		}
	} else {
		f.makeLean()
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
