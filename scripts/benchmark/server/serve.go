package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// A contestant is a server that listens.
type contestant interface {
	addr() string
	key() string // its CURVE key in Z85, "" without
	serve(ctx context.Context) error
}

// fillable is a contestant that notices when a peer does not read.
type fillable interface {
	awaitFull(ctx context.Context) error
}

// kinds are the contestants by name.
var kinds = map[string]func() (contestant, error){
	"echo":         listenEcho,
	"zmq4":         listenZMQ4,
	"muster":       listenMuster,
	"muster-curve": listenMusterCurve,
}

// Kinds are the names of the servers in this package.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Serve runs the server of that kind until in ends.
func Serve(ctx context.Context, kind string, in io.Reader, out io.Writer) error {
	listen := kinds[kind]
	if listen == nil {
		return fmt.Errorf("no server is called %q", kind)
	}
	c, err := listen()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready", c.addr(), c.key())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.serve(ctx) })
	orders := bufio.NewScanner(in)
	for orders.Scan() {
		if err := obey(ctx, c, orders.Text()); err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintln(out, "done")
	}
	cancel()
	return g.Wait()
}

func obey(ctx context.Context, c contestant, order string) error {
	verb, argument, _ := strings.Cut(order, " ")
	switch verb {
	case "settle":
		debug.FreeOSMemory()
		return nil
	case "profile":
		f, err := os.Create(argument)
		if err != nil {
			return err
		}
		return pprof.StartCPUProfile(f)
	case "profile-end":
		pprof.StopCPUProfile()
		return nil
	case "await-full":
		if f, ok := c.(fillable); ok {
			return f.awaitFull(ctx)
		}
	}
	return fmt.Errorf("cannot do %q", order)
}
