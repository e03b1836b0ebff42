// Package signals says which signals end a program of ours, and how.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context ends at Ctrl-C, at SIGTERM and when the terminal is closed, unless
// nohup said that this does not matter. A second signal kills.
func Context() context.Context {
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stops...)
	context.AfterFunc(ctx, stop)
	return ctx
}

// OutliveLog makes a reader of our log that goes away end the log and not the
// program. It is for services; a command in a pipe should end with the pipe.
func OutliveLog() {
	// Not signal.Ignore: programs that we start would inherit it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}
