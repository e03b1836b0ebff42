package main

import (
	"encoding/json"
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
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			query := url.Values{}
			if state != "" {
				query.Set("state", state)
			}
			raw, err := cl.listWhere(c.Context, "/v1/keys", "keys", query, 0)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"keys": nonNil(raw)})
			}
			keys, err := decodeRows[key](raw)
			if err != nil {
				return err
			}
			rows := make([][]string, len(keys))
			for i, k := range keys {
				rows[i] = []string{k.ID, k.State, k.AgentID, k.Address, moment(k.FirstSeen)}
			}
			printTable(c.App.Writer, []string{"KEY", "STATE", "AGENT", "ADDRESS", "FIRST SEEN"}, rows)
			return nil
		},
	}
}

func keysDecideCommand(verb, usage string, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: "KEY", Flags: serverFlags(append(flags, outputFlag())...),
		Action: func(c *cli.Context) error {
			id, err := oneArgument(c, "KEY")
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
			var body any
			if agent := c.String("id"); agent != "" {
				body = map[string]string{"agent_id": agent}
			}
			var raw json.RawMessage
			if err := cl.json(c.Context, "POST", "/v1/keys/"+url.PathEscape(id)+"/"+verb, nil, body, &raw); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			var k key
			if err := json.Unmarshal(raw, &k); err != nil {
				return err
			}
			printTable(c.App.Writer, []string{"KEY", "STATE", "AGENT"}, [][]string{{k.ID, k.State, k.AgentID}})
			return nil
		},
	}
}
