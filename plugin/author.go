package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Author is a plugin written in Go: what it says of itself, and its work.
type Author struct {
	Description Description // Contract is filled in

	// Run does what a command asks for. ctx ends when the command's time is up
	// or it is cancelled: then the grace period is left to clean up. An error is
	// the command's failure and its text the reason. Without an error the
	// command succeeded; its result is what was given to Reporter.Result, or null.
	Run func(ctx context.Context, c Command, r *Reporter) error
}

// Main is the main function of a plugin. It does not return.
//
//	func main() {
//		plugin.Main(plugin.Author{Description: plugin.Description{Version: "1.0"}, Run: run})
//	}
func Main(a Author) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := a.main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func (a Author) main(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) (code int) {
	var err error
	switch {
	case len(args) == 1 && args[0] == "describe":
		err = a.describe(out)
	case len(args) == 1 && args[0] == "run":
		err = a.run(ctx, in, out)
	default:
		fmt.Fprintln(errs, "this is a plugin of muster: call it with \"describe\" or \"run\"")
		return 2
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}

func (a Author) describe(out io.Writer) error {
	a.Description.Contract = Contract
	return json.NewEncoder(out).Encode(a.Description)
}

func (a Author) run(ctx context.Context, in io.Reader, out io.Writer) error {
	var c Command
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("command on standard input: %w", err)
	}
	r := &Reporter{out: out}
	if err := a.Run(ctx, c, r); err != nil {
		return err
	}
	return r.finish()
}
