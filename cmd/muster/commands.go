package main

import (
	"io"

	"github.com/urfave/cli/v2"
)

func commandsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "commands, newest first",
		Flags: serverFlags(
			&cli.IntFlag{Name: "limit", Usage: "show at most `N` (0: all)", Value: 20, EnvVars: []string{"MUSTER_LIMIT"}},
			outputFlag(),
		),
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			raw, err := cl.list(c.Context, "/v1/commands", "commands", c.Int("limit"))
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"commands": nonNil(raw)})
			}
			commands, err := decodeRows[command](raw)
			if err != nil {
				return err
			}
			rows := make([][]string, len(commands))
			for i, cmd := range commands {
				rows[i] = []string{cmd.ID, cmd.Type, cut(cmd.Name, 30), cmd.State, countList(cmd.Counts), moment(cmd.CreateTime)}
			}
			printTable(c.App.Writer, []string{"COMMAND", "TYPE", "NAME", "STATE", "TARGETS", "CREATED"}, rows)
			return nil
		},
	}
}

func commandsShowCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "one command",
		ArgsUsage: "COMMAND",
		Flags:     serverFlags(outputFlag()),
		Action: func(c *cli.Context) error {
			id, err := oneArgument(c, "COMMAND")
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			raw, cmd, err := cl.command(c.Context, id, 0)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			printFacts(c, [][2]string{
				{"id", cmd.ID}, {"type", cmd.Type}, {"name", cmd.Name}, {"input", cut(string(cmd.Input), 200)}, {"state", cmd.State},
				{"targets", countList(cmd.Counts)}, {"timeout", cmd.Timeout}, {"created", moment(cmd.CreateTime)},
				{"expires", moment(cmd.ExpireTime)}, {"ended", moment(cmd.EndTime)},
			})
			return nil
		},
	}
}

func commandsTargetsCommand() *cli.Command {
	return &cli.Command{
		Name:      "targets",
		Usage:     "where a command stands on each of its agents",
		ArgsUsage: "COMMAND",
		Flags:     serverFlags(outputFlag()),
		Action: func(c *cli.Context) error {
			id, err := oneArgument(c, "COMMAND")
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			raw, targets, err := cl.targets(c.Context, id)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"targets": nonNil(raw)})
			}
			rows := make([][]string, len(targets))
			for i, t := range targets {
				rows[i] = []string{t.AgentID, t.State, ending(t), moment(t.StartTime), took(t.StartTime, t.EndTime), cut(t.Reason, 72)}
			}
			printTable(c.App.Writer, []string{"AGENT", "STATE", "EXIT", "STARTED", "TIME", "REASON"}, rows)
			return nil
		},
	}
}

func commandsOutputCommand() *cli.Command {
	return &cli.Command{
		Name:      "output",
		Usage:     "what a program wrote, as it is",
		ArgsUsage: "COMMAND AGENT",
		Flags: serverFlags(
			&cli.StringFlag{Name: "stream", Usage: "`STREAM`: stdout or stderr", Value: "stdout", EnvVars: []string{"MUSTER_STREAM"}},
		),
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return usagef("want COMMAND and AGENT, got %d arguments", c.NArg())
			}
			if s := c.String("stream"); s != "stdout" && s != "stderr" {
				return usagef("--stream %q: want stdout or stderr", s)
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := cl.output(c.Context, c.Args().Get(0), c.Args().Get(1), c.String("stream"))
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(c.App.Writer, body)
			return err
		},
	}
}
