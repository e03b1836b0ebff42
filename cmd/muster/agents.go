package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/urfave/cli/v2"
)

func agentsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "all agents, by id",
		Flags: serverFlags(outputFlag()),
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			raw, err := cl.list(c.Context, "/v1/agents", "agents", 0)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"agents": nonNil(raw)})
			}
			agents, err := decodeRows[agent](raw)
			if err != nil {
				return err
			}
			rows := make([][]string, len(agents))
			for i, a := range agents {
				rows[i] = []string{a.ID, a.Status, tagList(a.Tags), a.Attributes.OS + "/" + a.Attributes.Arch, a.Attributes.Version, moment(a.LastSeen)}
			}
			printTable(c.App.Writer, []string{"AGENT", "STATUS", "TAGS", "SYSTEM", "VERSION", "LAST SEEN"}, rows)
			return nil
		},
	}
}

func agentsShowCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "one agent",
		ArgsUsage: "AGENT",
		Flags:     serverFlags(outputFlag()),
		Action: func(c *cli.Context) error {
			id, err := oneArgument(c, "AGENT")
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
			var raw json.RawMessage
			if err := cl.json(c.Context, "GET", "/v1/agents/"+url.PathEscape(id), nil, nil, &raw); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			var a agent
			if err := json.Unmarshal(raw, &a); err != nil {
				return err
			}
			printFacts(c, [][2]string{
				{"id", a.ID}, {"status", a.Status}, {"type", a.Type}, {"tags", tagList(a.Tags)},
				{"version", a.Attributes.Version}, {"system", a.Attributes.OS + "/" + a.Attributes.Arch},
				{"hostname", a.Attributes.Hostname}, {"ip", a.Attributes.IP}, {"pid", fmt.Sprint(a.Attributes.PID)},
				{"address", a.Address}, {"started", moment(a.StartupTime)}, {"first seen", moment(a.RegisterTime)},
				{"last seen", moment(a.LastSeen)}, {"can run", strings.Join(a.CommandTypes, ", ")},
			})
			return nil
		},
	}
}

// oneArgument is the positional argument of a subcommand that has exactly one.
func oneArgument(c *cli.Context, name string) (string, error) {
	if c.NArg() != 1 {
		return "", usagef("want one %s, got %d arguments", name, c.NArg())
	}
	return c.Args().First(), nil
}

// printFacts shows one resource, a fact a line; what is empty is left out.
func printFacts(c *cli.Context, facts [][2]string) {
	for _, f := range facts {
		if f[1] != "" {
			fmt.Fprintf(c.App.Writer, "%-12s%s\n", f[0], clean(f[1]))
		}
	}
}

// nonNil makes an empty list show as [] and not as null.
func nonNil(rows []json.RawMessage) []json.RawMessage {
	if rows == nil {
		return []json.RawMessage{}
	}
	return rows
}
