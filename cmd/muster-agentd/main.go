// Command muster-agentd is the agent: it runs commands for a coordinator and
// does not lose what came of them.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/agentcmd"
	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
	"github.com/musterhq/muster/cmd/internal/signals"
)

func main() {
	signals.OutliveLog()
	if err := newApp(os.Stdout, os.Stderr).RunContext(signals.Context(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "muster-agentd:", err)
		os.Exit(1)
	}
}

func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:            "muster-agentd",
		Usage:           "the agent: runs commands for a muster coordinator",
		Flags:           agentcmd.Flags(),
		Action:          func(c *cli.Context) error { return agentcmd.Run(c.Context, c) },
		Writer:          stdout,
		ErrWriter:       stderr,
		Version:         release.Version(),
		HideHelpCommand: true,
		OnUsageError:    arguments.Refuse,
		ExitErrHandler:  func(*cli.Context, error) {}, // main tells the error
	}
}
