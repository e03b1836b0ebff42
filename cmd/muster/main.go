// Command muster runs the coordinator with its REST service, and is the
// operator's command line to it.
//
// Each group of subcommands begins in a file of its name: up.go, demo.go, run.go,
// agents.go, commands.go, groups.go, configs.go, rollouts.go, apply.go, keys.go,
// events.go, store.go. The operator's ones speak
// REST alone (client.go). Exit codes are in exit.go.
package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
	"github.com/musterhq/muster/cmd/internal/signals"
)

func main() {
	os.Exit(run(signals.Context(), os.Args, os.Stdout, os.Stderr))
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := newApp(stdout, stderr)
	return exitCode(app.RunContext(ctx, arguments.Arrange(app.Commands, args)), stderr)
}

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:  "muster",
		Usage: "command a fleet of agents",
		Commands: []*cli.Command{
			demoCommand(), upCommand(), runCommand(),
			group("agents", "what is known of the agents",
				agentsListCommand(), agentsShowCommand(), agentsConfigsCommand(), agentsMaintenanceCommand(), agentsDeleteCommand()),
			group("commands", "what was run and what came of it",
				commandsListCommand(), commandsShowCommand(), commandsTargetsCommand(), commandsOutputCommand(),
				commandsControlCommand("cancel", "send nothing more, and stop what runs"),
				commandsControlCommand("pause", "send nothing more until resume; what was sent goes on"),
				commandsControlCommand("resume", "go on after pause, or after too many failures halted it")),
			groupsCommand(), configsCommand(), applyCommand(),
			group("store", "the store file of a coordinator that does not run", storeCheckCommand(), storeCompactCommand(), storeExportCommand()),
			eventsCommand(), keysCommand(), agentChildCommand(),
		},
		Action:          unknownCommand,
		Writer:          stdout,
		ErrWriter:       stderr,
		Version:         release.Version(),
		HideHelpCommand: true,
		OnUsageError:    arguments.Refuse,
		ExitErrHandler:  func(*cli.Context, error) {}, // run tells the error and the exit code
	}
	arguments.RefuseIn(app.Commands)
	return app
}

// group is a command that only holds others.
func group(name, usage string, of ...*cli.Command) *cli.Command {
	return &cli.Command{Name: name, Usage: usage, Subcommands: of, HideHelpCommand: true, Action: unknownCommand}
}

func unknownCommand(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("no such command: %q; see %s --help", c.Args().First(), c.App.Name)
	}
	return cli.ShowSubcommandHelp(c)
}

// tokenFile is in the data folder of `up`.
const tokenFile = "admin.token"

// defaultData is the data folder of `up` when none is given; the other
// subcommands look there for the token.
func defaultData() string {
	if dir := os.Getenv("MUSTER_DATA"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/muster"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "muster-data"
	}
	return filepath.Join(home, ".local/share/muster")
}
