package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

func groupsCommand() *cli.Command {
	return group("groups", "named parts of the fleet",
		groupsListCommand(), groupsShowCommand(), groupsMembersCommand(), groupsPutCommand(), groupsPreviewCommand(), groupsDeleteCommand())
}

func groupsListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "all groups, by name", Flags: serverFlags(outputFlag()),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, err := cl.list(c.Context, "/v1/groups", "groups", 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "groups", raw, []string{"GROUP", "AGENTS", "WHERE", "NAMED", "UPDATED"}, func(g agentGroup) []string {
				return []string{g.Name, strconv.Itoa(g.Size), cut(g.Where, 60), cut(strings.Join(g.Agents, ","), 30), moment(g.UpdateTime)}
			})
		}),
	}
}

func groupsShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "one group", ArgsUsage: "GROUP", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var raw json.RawMessage
			if err := cl.json(c.Context, "GET", groupPath(c.Args().First(), ""), nil, nil, &raw); err != nil {
				return err
			}
			return showOne(c, asJSON, raw, groupFacts)
		}),
	}
}

func groupFacts(g agentGroup) [][2]string {
	return [][2]string{
		{"name", g.Name}, {"description", g.Description}, {"where", g.Where}, {"named", strings.Join(g.Agents, ", ")},
		{"agents", strconv.Itoa(g.Size)}, {"created", moment(g.CreateTime)}, {"updated", moment(g.UpdateTime)}, {"etag", g.ETag},
	}
}

func groupsMembersCommand() *cli.Command {
	return &cli.Command{
		Name: "members", Usage: "the agents that are in a group", ArgsUsage: "GROUP", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, err := cl.list(c.Context, groupPath(c.Args().First(), "/agents"), "agent_ids", 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "agent_ids", raw, []string{"AGENT"}, func(id string) []string { return []string{id} })
		}),
	}
}

// memberFlags say who is in a group.
func memberFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "where", Usage: "agents for which the `CEL` expression is true", EnvVars: []string{"MUSTER_GROUP_WHERE"}},
		&cli.StringSliceFlag{Name: "tag", Aliases: []string{"l"}, Usage: "agents with the tag `NAME=VALUE`; may be repeated, a comma separates several; all must hold", EnvVars: []string{"MUSTER_GROUP_TAGS"}},
		&cli.StringSliceFlag{Name: "agent", Usage: "the agent with this `ID`, too; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_GROUP_AGENTS"}},
	}, more...)
}

func groupOf(c *cli.Context) (groupBody, error) {
	terms, err := tagTerms(c.StringSlice("tag"))
	if err != nil {
		return groupBody{}, err
	}
	if where := c.String("where"); where != "" {
		if len(terms) > 0 {
			where = "(" + where + ")"
		}
		terms = append([]string{where}, terms...)
	}
	return groupBody{Where: strings.Join(terms, " && "), Agents: c.StringSlice("agent")}, nil
}

func groupsPreviewCommand() *cli.Command {
	return &cli.Command{
		Name: "preview", Usage: "who would be in a group; with its name, who would join and leave it", ArgsUsage: "[GROUP]",
		Flags: serverFlags(memberFlags(outputFlag())...),
		Action: asking(0, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			body, err := groupOf(c)
			if err != nil {
				return err
			}
			body.Name = c.Args().First()
			return showGroupPreview(c, cl, asJSON, body)
		}),
	}
}

func showGroupPreview(c *cli.Context, cl *client, asJSON bool, body groupBody) error {
	p, err := cl.previewGroup(c.Context, body)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.App.Writer, p)
	}
	rows := make([][]string, len(p.AgentIDs))
	for i, id := range p.AgentIDs {
		joins := ""
		if body.Name != "" && slices.Contains(p.Joining, id) {
			joins = "joins"
		}
		rows[i] = []string{id, joins}
	}
	for _, id := range p.LeavingIDs {
		rows = append(rows, []string{id, "leaves"})
	}
	printTable(c.App.Writer, []string{"AGENT", "CHANGE"}, rows)
	fmt.Fprintf(c.App.Writer, "%d of %d agents", p.Total, p.Fleet)
	if body.Name != "" {
		fmt.Fprintf(c.App.Writer, ", %d join, %d leave", len(p.Joining), p.Leaving)
	}
	fmt.Fprintln(c.App.Writer, "; nothing was changed")
	return tellGroupNotes(c, cl, asJSON, body, p)
}

// tellGroupNotes points out what may not be meant.
func tellGroupNotes(c *cli.Context, cl *client, asJSON bool, body groupBody, p groupPreview) error {
	if asJSON {
		return nil
	}
	for _, note := range p.notes(body) {
		tell(c, asJSON, "%s", note)
	}
	unknown, err := cl.unknownAgents(c.Context, body.Agents)
	if len(unknown) > 0 {
		tell(c, asJSON, "note: not known, so far: %s", namesOf(unknown))
	}
	return err
}

// notes name the configs that come and go with the members, and members of whom
// there are none, or all.
func (p groupPreview) notes(body groupBody) (notes []string) {
	if len(p.Configs) > 0 && len(p.Joining)+p.Leaving > 0 {
		notes = append(notes, fmt.Sprintf("configs of the group: %s; who joins gets them, who leaves loses them and their files, unless they are bound otherwise", namesOf(p.Configs)))
	}
	if p.Total == 0 {
		notes = append(notes, "note: no agent is a member")
	}
	if note := everybody(body.Where, p.Total, p.Fleet); note != "" {
		notes = append(notes, note)
	}
	return notes
}

func groupsPutCommand() *cli.Command {
	return &cli.Command{
		Name: "put", Usage: "make a group, or replace one", ArgsUsage: "GROUP",
		Flags: serverFlags(memberFlags(
			&cli.StringFlag{Name: "description", Usage: "`TEXT` for people", EnvVars: []string{"MUSTER_GROUP_DESCRIPTION"}},
			&cli.StringFlag{Name: "if-match", Usage: "only if the group still has the `ETAG` that show tells", EnvVars: []string{"MUSTER_IF_MATCH"}},
			dryRunFlag("say who would be in it, and change nothing"), yesFlag(), outputFlag())...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			body, err := groupOf(c)
			if err != nil {
				return err
			}
			body.Name, body.Description = c.Args().First(), c.String("description")
			if c.Bool("dry-run") {
				return showGroupPreview(c, cl, asJSON, body)
			}
			p, err := cl.previewGroup(c.Context, body)
			if err != nil {
				return err
			}
			if err := largeShare(c.Bool("yes"), len(p.Joining)+p.Leaving, p.Fleet); err != nil {
				return err
			}
			raw, err := cl.putGroup(c.Context, body, c.String("if-match"))
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			tell(c, asJSON, "%s: %d of %d agents, %d joined, %d left", body.Name, p.Total, p.Fleet, len(p.Joining), p.Leaving)
			if len(p.LeavingIDs) > 0 {
				tell(c, asJSON, "left: %s", namesOf(p.LeavingIDs))
			}
			return tellGroupNotes(c, cl, asJSON, body, p)
		}),
	}
}

func groupsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name: "delete", Usage: "delete a group that no config is bound to", ArgsUsage: "GROUP", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			name := c.Args().First()
			members, err := rowsOf[string](c.Context, cl, groupPath(name, "/agents"), "agent_ids", 0)
			if err != nil {
				return err
			}
			if err := cl.remove(c.Context, groupPath(name, ""), ""); err != nil {
				return err
			}
			tell(c, asJSON, "%s: deleted; it had %d agents", name, len(members))
			if len(members) > 0 {
				tell(c, asJSON, "left: %s", namesOf(members))
			}
			return nil
		}),
	}
}

// previewGroup walks all pages.
func (c *client) previewGroup(ctx context.Context, body groupBody) (all groupPreview, err error) {
	query := url.Values{"page_size": {"1000"}}
	for {
		var p groupPreview
		if err := c.json(ctx, "POST", "/v1/groups/preview", query, body, &p); err != nil {
			return all, err
		}
		if query.Has("page_token") { // the first page had them, too
			p.LeavingIDs, p.Configs = all.LeavingIDs, all.Configs
		}
		p.AgentIDs, p.Joining = append(all.AgentIDs, p.AgentIDs...), append(all.Joining, p.Joining...)
		if all = p; p.NextToken == "" {
			return all, nil
		}
		query.Set("page_token", p.NextToken)
	}
}

func (c *client) putGroup(ctx context.Context, body groupBody, etag string) (raw json.RawMessage, err error) {
	return c.putGroupIn(ctx, nil, body, etag)
}

// tryGroup says what putGroup would be refused for.
func (c *client) tryGroup(ctx context.Context, body groupBody, etag string) error {
	_, err := c.putGroupIn(ctx, url.Values{"dry_run": {"1"}}, body, etag)
	return err
}

func (c *client) putGroupIn(ctx context.Context, query url.Values, body groupBody, etag string) (raw json.RawMessage, err error) {
	path := groupPath(body.Name, "")
	body.Name = "" // the path has it
	err = c.jsonWith(ctx, "PUT", path, query, ifMatch(etag), body, &raw)
	return raw, err
}
