package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func commandsListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "commands, newest first",
		Flags: serverFlags(
			&cli.IntFlag{Name: "limit", Usage: "show at most `N` (0: all)", Value: 20, EnvVars: []string{"MUSTER_LIMIT"}},
			&cli.StringFlag{Name: "filter", Usage: "only those for which the `CEL` expression is true, over id, type, name, state, labels, create_time and agents", EnvVars: []string{"MUSTER_FILTER"}},
			&cli.StringSliceFlag{Name: "state", Usage: "only those in the `STATE`: open, paused, halted, done or cancelled; a comma separates several", EnvVars: []string{"MUSTER_STATE"}},
			&cli.StringFlag{Name: "type", Usage: "only those of the command `TYPE`", EnvVars: []string{"MUSTER_TYPE"}},
			&cli.StringSliceFlag{Name: "label", Aliases: []string{"l"}, Usage: "only those with the label `NAME=VALUE`; may be repeated, a comma separates several; all must hold", EnvVars: []string{"MUSTER_LABELS"}},
			&cli.StringFlag{Name: "since", Usage: "only those created since a `TIME`: 2h, 7d, 2026-11-30 or 2026-11-30T06:33:20Z", EnvVars: []string{"MUSTER_SINCE"}},
			&cli.StringFlag{Name: "agent", Usage: "only those for the agent `ID`", EnvVars: []string{"MUSTER_AGENT"}},
			&cli.StringFlag{Name: "order", Usage: "`ORDER`: desc, newest first, or asc", Value: "desc", EnvVars: []string{"MUSTER_ORDER"}},
			outputFlag(),
		),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			query, err := listQuery(c, time.Now())
			if err != nil {
				return err
			}
			raw, err := cl.listWhere(c.Context, "/v1/commands", "commands", query, c.Int("limit"))
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "commands", raw, []string{"COMMAND", "TYPE", "NAME", "STATE", "TARGETS", "CREATED"}, func(cmd command) []string {
				return []string{cmd.ID, cmd.Type, cut(cmd.Name, 30), cmd.State, countList(cmd.Counts), moment(cmd.CreateTime)}
			})
		}),
	}
}

// listQuery writes the flags as one filter.
func listQuery(c *cli.Context, now time.Time) (url.Values, error) {
	order := c.String("order")
	if order != "asc" && order != "desc" {
		return nil, usagef("--order %q: want asc or desc", order)
	}
	terms, err := listTerms(c, now)
	if err != nil {
		return nil, err
	}
	query := url.Values{"order": {order}}
	if len(terms) > 0 {
		query.Set("filter", strings.Join(terms, " && "))
	}
	return query, nil
}

func listTerms(c *cli.Context, now time.Time) (terms []string, err error) {
	add := func(format string, args ...any) { terms = append(terms, fmt.Sprintf(format, args...)) }
	if states := c.StringSlice("state"); len(states) > 0 {
		quoted := make([]string, len(states))
		for i, s := range states {
			quoted[i] = strconv.Quote(strings.ToUpper(s))
		}
		add("state in [%s]", strings.Join(quoted, ", "))
	}
	if kind := c.String("type"); kind != "" {
		add("type == %s", strconv.Quote(kind))
	}
	for _, pair := range c.StringSlice("label") {
		name, value, err := pairOf("label", pair)
		if err != nil {
			return nil, err
		}
		add("labels[%s] == %s", strconv.Quote(name), strconv.Quote(value))
	}
	if since := c.String("since"); since != "" {
		t, err := timeOf(since, now)
		if err != nil {
			return nil, usagef("--since %v", err)
		}
		add("create_time >= timestamp(%q)", t.UTC().Format(time.RFC3339Nano))
	}
	if agent := c.String("agent"); agent != "" { // the dearest to look at, so it comes late
		add("%s in agents", strconv.Quote(agent))
	}
	if filter := c.String("filter"); filter != "" {
		add("(%s)", filter)
	}
	return terms, nil
}
