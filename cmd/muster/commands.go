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
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, cmd, err := cl.command(c.Context, c.Args().First(), 0)
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
		}),
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
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			query := url.Values{}
			if states := c.StringSlice("state"); len(states) > 0 {
				query.Set("state", strings.ToUpper(strings.Join(states, ",")))
			}
			raw, err := cl.listWhere(c.Context, commandPath(c.Args().First(), "/targets"), "targets", query, 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "targets", raw, []string{"AGENT", "STATE", "EXIT", "STARTED", "TIME", "REASON"}, func(t target) []string {
				return []string{t.AgentID, t.State, ending(t), moment(t.StartTime), took(t.StartTime, t.EndTime), oneLine(t.Reason)}
			})
		}),
	}
}

// commandsControlCommand is cancel, pause or resume.
func commandsControlCommand(verb, usage string) *cli.Command {
	return controlCommand(verb, usage, "COMMAND", commandPath, func(cmd command) string {
		return fmt.Sprintf("%s: %s, %s", cmd.ID, cmd.State, countList(cmd.Counts))
	})
}

// controlCommand steers a resource; line says how it stands then.
func controlCommand[T any](verb, usage, argument string, path func(id, rest string) string, line func(T) string) *cli.Command {
	return &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: argument,
		Flags: serverFlags(&cli.StringFlag{Name: "reason", Usage: "`WHY`, for those who read it later", EnvVars: []string{"MUSTER_REASON"}}, outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var body any
			if reason := c.String("reason"); reason != "" {
				body = map[string]string{"reason": reason}
			}
			raw, now, err := ask[T](c.Context, cl, "POST", path(c.Args().First(), "/"+verb), nil, nil, body)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			tell(c, asJSON, "%s", line(now))
			return nil
		}),
	}
}
