package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func agentsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "all agents, by id",
		Flags: serverFlags(outputFlag()),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, err := cl.list(c.Context, "/v1/agents", "agents", 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "agents", raw, []string{"AGENT", "STATUS", "TAGS", "SYSTEM", "VERSION", "LAST SEEN"}, func(a agent) []string {
				return []string{a.ID, a.state(), tagList(a.Tags), a.Attributes.OS + "/" + a.Attributes.Arch, a.Attributes.Version, moment(a.LastSeen)}
			})
		}),
	}
}

func agentsShowCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "one agent",
		ArgsUsage: "AGENT",
		Flags:     serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var raw json.RawMessage
			if err := cl.json(c.Context, "GET", agentPath(c.Args().First(), ""), nil, nil, &raw); err != nil {
				return err
			}
			return showOne(c, asJSON, raw, agentFacts)
		}),
	}
}

// hooksWord says whether configs with check_cmd or reload_cmd can be applied.
func hooksWord(a agent) string {
	if a.Hooks {
		return "allowed"
	}
	return "not allowed"
}

// agentFacts answer "why is nothing happening": what waits, and for what.
func agentFacts(a agent) [][2]string {
	facts := [][2]string{
		{"id", a.ID}, {"status", a.state()}, {"type", a.Type}, {"tags", tagList(a.Tags)},
		{"version", a.Attributes.Version}, {"system", a.Attributes.OS + "/" + a.Attributes.Arch},
		{"hostname", a.Attributes.Hostname}, {"ip", a.Attributes.IP}, {"pid", fmt.Sprint(a.Attributes.PID)},
		{"address", a.Address}, {"started", moment(a.StartupTime)}, {"first seen", moment(a.RegisterTime)},
		{"last seen", moment(a.LastSeen)}, {"can run", strings.Join(a.CommandTypes, ", ")}, {"hooks", hooksWord(a)}, {"groups", strings.Join(a.Groups, ", ")},
	}
	if x := a.Conflict; x != nil {
		facts = append(facts, [2]string{"conflict", fmt.Sprintf("%s has the id; at %s another process wanted it, from %s, machine %s",
			x.Address, moment(x.Time), x.RefusedAddress, cmp.Or(x.RefusedMachineID, "unknown"))})
	}
	if q := a.Queue; q != nil {
		facts = append(facts, [2]string{"queue", fmt.Sprintf("%d waiting, %d in flight", q.Waiting, q.InFlight)})
		if q.OldestCommandID != "" {
			facts = append(facts, [2]string{"oldest", q.OldestCommandID})
		}
		if q.LastRefusal != "" {
			facts = append(facts, [2]string{"refused", fmt.Sprintf("%s (%s)", q.LastRefusal, moment(q.LastRefusalTime))})
		}
		facts = append(facts, [2]string{"waits for", waitsFor(a)})
	}
	for _, p := range a.Plugins {
		text := strings.TrimSpace(strings.Join([]string{p.Name, p.Version, p.Description}, " "))
		if p.Error != "" {
			text += ": " + p.Error
		}
		facts = append(facts, [2]string{"plugin", text})
	}
	return facts
}

// waitsFor says what holds up the queue of an agent, if anything does.
func waitsFor(a agent) string {
	switch {
	case a.Queue.Waiting == 0:
		return ""
	case a.Maintenance:
		return "the end of its maintenance: muster agents maintenance " + a.ID + " off"
	case a.Status == "OFFLINE":
		return "the agent to come back"
	case a.Status == "SUSPECT":
		return "a sign of life from the agent"
	case a.Queue.InFlight > 0:
		return "those in flight to end, or a command that is paused, halted or rolled out in steps"
	}
	return "a command that is paused, halted or rolled out in steps"
}

func agentsMaintenanceCommand() *cli.Command {
	return &cli.Command{
		Name:      "maintenance",
		Usage:     "hold the queue of an agent: while it is on nothing is sent to it",
		ArgsUsage: "AGENT on|off",
		Flags:     serverFlags(outputFlag()),
		Action: asking(2, 2, func(c *cli.Context, cl *client, asJSON bool) error {
			hold, known := map[string]bool{"on": true, "off": false}[c.Args().Get(1)]
			if !known {
				return usagef("want AGENT and on or off")
			}
			var raw json.RawMessage
			if err := cl.json(c.Context, "PUT", agentPath(c.Args().First(), "/maintenance"), nil, map[string]bool{"maintenance": hold}, &raw); err != nil {
				return err
			}
			return showOne(c, asJSON, raw, agentFacts)
		}),
	}
}

func agentsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name: "delete", Usage: "forget an agent, and end what waits for it; when it comes again it is new", ArgsUsage: "AGENT", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			id := c.Args().First()
			if err := cl.remove(c.Context, agentPath(id, ""), ""); err != nil {
				return err
			}
			tell(c, asJSON, "%s: deleted", id)
			return nil
		}),
	}
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
