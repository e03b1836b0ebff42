package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/urfave/cli/v2"
)

func commandsOutputCommand() *cli.Command {
	return &cli.Command{
		Name:      "output",
		Usage:     "what a program wrote, as it is",
		ArgsUsage: "COMMAND AGENT",
		Flags: serverFlags(
			&cli.StringFlag{Name: "stream", Usage: "`STREAM`: stdout or stderr", Value: "stdout", EnvVars: []string{"MUSTER_STREAM"}},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the program has ended", EnvVars: []string{"MUSTER_FOLLOW"}},
			&cli.StringFlag{Name: "range", Usage: "only the `BYTES` such as 0-499, 500- or -500 (the last 500), counted as the program wrote them", EnvVars: []string{"MUSTER_RANGE"}},
		),
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return usagef("want COMMAND and AGENT, got %d arguments", c.NArg())
			}
			if s := c.String("stream"); s != "stdout" && s != "stderr" {
				return usagef("--stream %q: want stdout or stderr", s)
			}
			if c.Bool("follow") && c.String("range") != "" {
				return usagef("--follow and --range do not go together: ranges are of output that is whole")
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			o := &outputReader{
				client: cl, path: outputPath(c.Args().Get(0), c.Args().Get(1)), name: c.String("stream"),
				stdout: c.App.Writer, stderr: c.App.ErrWriter,
			}
			if c.Bool("follow") {
				return o.follow(c.Context)
			}
			return o.read(c.Context, c.String("range"))
		},
	}
}

// outputReader copies one stream of one target to the standard output.
type outputReader struct {
	client         *client
	path, name     string
	stdout, stderr io.Writer
	written        int64
}

// read copies what is kept, or a range of it.
func (o *outputReader) read(ctx context.Context, bytes string) error {
	var header http.Header
	if bytes != "" {
		header = http.Header{"Range": {"bytes=" + bytes}}
	}
	resp, err := o.client.do(ctx, "GET", o.path, url.Values{"stream": {o.name}}, header, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if bytes != "" && resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("there are no ranges before the program has ended; try again then, or use --follow")
	}
	if _, err := io.Copy(o.stdout, resp.Body); err != nil {
		return fmt.Errorf("output of %s: %w", o.path, err)
	}
	if h := resp.Header; bytes == "" && h.Get("Muster-Output-Truncated") == "true" {
		fmt.Fprintf(o.stderr, "muster: the program wrote %s bytes; this was the start (%s bytes) and the end, %s bytes together\n",
			h.Get("Muster-Output-Size"), h.Get("Muster-Output-Head"), h.Get("Muster-Output-Kept"))
	}
	return nil
}

// follow copies what there is and what comes, until the program has ended. When
// the connection is lost in between it asks again and passes over what it has.
func (o *outputReader) follow(ctx context.Context) error {
	for lost := (time.Time{}); ; {
		before := o.written
		err := o.followOnce(ctx)
		if ctx.Err() != nil {
			return &codedError{code: exitInterrupted}
		}
		var local *localError
		if err == nil || errors.As(err, &local) || isAnswer(err) || lost.IsZero() && isUnsent(err) {
			return err
		}
		switch {
		case lost.IsZero() || o.written > before:
			lost = time.Now()
		case time.Since(lost) > patient:
			return err
		}
		fmt.Fprintf(o.stderr, "muster: output lost (%v); trying again\n", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// localError is one of our own standard output; the server has no part in it.
type localError struct{ error }

func (o *outputReader) followOnce(ctx context.Context) error {
	resp, err := o.client.do(ctx, "GET", o.path, url.Values{"stream": {o.name}, "follow": {"1"}}, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, o.written); err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, rerr := resp.Body.Read(buf)
		m, werr := o.stdout.Write(buf[:n])
		o.written += int64(m)
		switch {
		case werr != nil:
			return &localError{werr}
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil:
			return rerr
		}
	}
}
