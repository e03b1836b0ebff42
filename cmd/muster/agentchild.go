package main

import (
	"context"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/agentcmd"
)

const agentChildName = "demo-agent"

// agentChildCommand is an agent of the demo: muster-agentd, but it ends with its
// standard input, which is a pipe that the demo holds open as long as it lives.
func agentChildCommand() *cli.Command {
	return &cli.Command{
		Name:   agentChildName,
		Hidden: true,
		Flags:  agentcmd.Flags(),
		Action: func(c *cli.Context) error {
			ctx, cancel := context.WithCancel(c.Context)
			defer cancel()
			go func() {
				defer cancel()
				io.Copy(io.Discard, os.Stdin) // ends when the demo does; what it reads does not matter
			}()
			return agentcmd.Run(ctx, c)
		},
	}
}
