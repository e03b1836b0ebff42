package main

import (
	"net/url"

	"github.com/urfave/cli/v2"
)

func keysCommand() *cli.Command {
	return group("keys", "which agents may come in over CURVE",
		keysListCommand("pending", "keys that wait for approval", "PENDING"),
		keysListCommand("list", "all keys", ""),
		keysDecideCommand("approve", "let the holder of a key in, as one agent",
			&cli.StringFlag{Name: "id", Usage: "agent `ID` to bind the key to", DefaultText: "the one it asks for", EnvVars: []string{"MUSTER_KEY_AGENT"}}),
		keysDecideCommand("revoke", "shut the holder of a key out, and cut its link"))
}

func keysListCommand(name, usage, state string) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Flags: serverFlags(outputFlag()),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			query := url.Values{}
			if state != "" {
				query.Set("state", state)
			}
			raw, err := cl.listWhere(c.Context, "/v1/keys", "keys", query, 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "keys", raw, []string{"KEY", "STATE", "AGENT", "ADDRESS", "FIRST SEEN"}, func(k key) []string {
				return []string{k.ID, k.State, k.AgentID, k.Address, moment(k.FirstSeen)}
			})
		}),
	}
}

func keysDecideCommand(verb, usage string, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: "KEY", Flags: serverFlags(append(flags, outputFlag())...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var body any
			if agent := c.String("id"); agent != "" {
				body = map[string]string{"agent_id": agent}
			}
			raw, k, err := ask[key](c.Context, cl, "POST", "/v1/keys/"+url.PathEscape(c.Args().First())+"/"+verb, nil, nil, body)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			printTable(c.App.Writer, []string{"KEY", "STATE", "AGENT"}, [][]string{{k.ID, k.State, k.AgentID}})
			return nil
		}),
	}
}
