package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/urfave/cli/v2"
)

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
				{"id", cmd.ID}, {"type", cmd.Type}, {"name", cmd.Name}, {"labels", tagList(cmd.Labels)}, {"input", cut(string(cmd.Input), 200)},
				{"for", cut(cmd.Target.String(), 200)}, {"state", cmd.State}, {"reason", cmd.StateReason},
				{"targets", countList(cmd.Counts)}, {"rollout", cmd.Rollout.String()}, {"timeout", cmd.Timeout},
				{"created", moment(cmd.CreateTime)}, {"expires", moment(cmd.ExpireTime)}, {"ended", moment(cmd.EndTime)},
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
		Flags: serverFlags(
			&cli.StringSliceFlag{Name: "state", Usage: "only targets in the `STATE`, such as FAILED; a comma separates several", EnvVars: []string{"MUSTER_STATE"}},
			outputFlag(),
		),
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
			query := url.Values{}
			if states := c.StringSlice("state"); len(states) > 0 {
				query.Set("state", strings.ToUpper(strings.Join(states, ",")))
			}
			raw, targets, err := cl.targets(c.Context, id, query)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"targets": nonNil(raw)})
			}
			rows := make([][]string, len(targets))
			for i, t := range targets {
				rows[i] = []string{t.AgentID, t.State, ending(t), moment(t.StartTime), took(t.StartTime, t.EndTime), oneLine(t.Reason)}
			}
			printTable(c.App.Writer, []string{"AGENT", "STATE", "EXIT", "STARTED", "TIME", "REASON"}, rows)
			return nil
		},
	}
}

// commandsControlCommand is cancel, pause or resume.
func commandsControlCommand(verb, usage string) *cli.Command {
	return &cli.Command{
		Name:      verb,
		Usage:     usage,
		ArgsUsage: "COMMAND",
		Flags: serverFlags(
			&cli.StringFlag{Name: "reason", Usage: "`WHY`, for those who read it later", EnvVars: []string{"MUSTER_REASON"}},
			outputFlag(),
		),
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
			raw, cmd, err := cl.control(c.Context, id, verb, c.String("reason"))
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			fmt.Fprintf(c.App.Writer, "%s: %s, %s\n", cmd.ID, cmd.State, countList(cmd.Counts))
			return nil
		},
	}
}
