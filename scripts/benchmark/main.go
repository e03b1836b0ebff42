// Command benchmark is what scripts/bench runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/musterhq/muster/scripts/benchmark/commands"
	"github.com/musterhq/muster/scripts/benchmark/server"
)

// errMissed means that something measured is not good enough.
var errMissed = errors.New("a bar was missed")

// verbs by the first argument. serve and part are for ourselves: they run a server, or another process of a benchmark.
var verbs = map[string]func(ctx context.Context, args []string) error{
	"bus":      bench,
	"stall":    stall,
	"serve":    serve,
	"part":     commands.Part,
	"commands": benchCommands,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || verbs[args[0]] == nil {
		return errors.New("say what: bus, stall, commands")
	}
	return verbs[args[0]](ctx, args[1:])
}

func serve(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("serve KIND")
	}
	return server.Serve(ctx, args[0], os.Stdin, os.Stdout)
}

// machine is what the numbers depend on most. Ask before the work begins, which
// is a load, too.
func machine() string {
	before := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		before, _, _ = strings.Cut(string(b), " ")
	}
	return fmt.Sprintf("%d cores, %s, load average of other work before %s", runtime.NumCPU(), runtime.Version(), before)
}
