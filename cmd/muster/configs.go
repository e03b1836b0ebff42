package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

func configsCommand() *cli.Command {
	return group("configs", "files that agents hold",
		configsListCommand(), configsShowCommand(), configsVersionsCommand(), configsCatCommand(), configsDiffCommand(), configsStatusCommand(),
		configsPutCommand(), configsBindCommand(), configsPreviewCommand(), configsDeleteCommand(), configsRollbackCommand(), rolloutCommands())
}

func configsListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "all configs, by name", Flags: serverFlags(outputFlag()),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, err := cl.list(c.Context, "/v1/configs", "configs", 0)
			if err != nil {
				return err
			}
			return showRows(c, asJSON, "configs", raw, []string{"CONFIG", "KIND", "LATEST", "BOUND TO", "AGENTS"}, func(f config) []string {
				return []string{f.Name, f.Kind, strconv.Itoa(f.LatestVersion), cut(bindingList(f.Bindings), 60), f.Counts.String()}
			})
		}),
	}
}

func configsShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "one config", ArgsUsage: "CONFIG", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var raw json.RawMessage
			if err := cl.json(c.Context, "GET", configPath(c.Args().First(), ""), nil, nil, &raw); err != nil {
				return err
			}
			return showOne(c, asJSON, raw, configFacts)
		}),
	}
}

func configFacts(f config) [][2]string {
	facts := [][2]string{
		{"name", f.Name}, {"kind", f.Kind}, {"description", f.Description}, {"latest", fmt.Sprintf("version %d", f.LatestVersion)},
	}
	for _, b := range f.Bindings {
		facts = append(facts, [2]string{"bound to", b.String()})
	}
	return append(facts, [][2]string{
		{"agents", f.Counts.String()}, {"rollout", f.RolloutID}, {"created", moment(f.CreateTime)}, {"updated", moment(f.UpdateTime)}, {"etag", f.ETag},
	}...)
}

func configsVersionsCommand() *cli.Command {
	return &cli.Command{
		Name: "versions", Usage: "the versions of a config, newest first", ArgsUsage: "CONFIG",
		Flags: serverFlags(&cli.IntFlag{Name: "limit", Usage: "show at most `N` (0: all)", Value: 20, EnvVars: []string{"MUSTER_LIMIT"}}, outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			raw, err := cl.list(c.Context, configPath(c.Args().First(), "/versions"), "versions", c.Int("limit"))
			if err != nil {
				return err
			}
			var f config
			if !asJSON {
				if f, err = cl.config(c.Context, c.Args().First()); err != nil {
					return err
				}
			}
			return showRows(c, asJSON, "versions", raw, []string{"VERSION", "SIZE", "SHA256", "PATH", "NOTE", "CREATED", "BOUND TO"}, func(v configVersion) []string {
				return []string{strconv.Itoa(v.Version), strconv.Itoa(v.Size), v.SHA256[:min(12, len(v.SHA256))], v.File.Path, cut(v.Note, 40), moment(v.CreateTime), f.scopesOf(v.Version)}
			})
		}),
	}
}

func versionFlag(usage string) cli.Flag {
	return &cli.IntFlag{Name: "version", Usage: usage, DefaultText: "the latest", EnvVars: []string{"MUSTER_CONFIG_VERSION"}}
}

// versionOf is what the flag says, or else what is usual.
func versionOf(c *cli.Context, flag string, usual int) int {
	if c.IsSet(flag) {
		return c.Int(flag)
	}
	return usual
}

func configsCatCommand() *cli.Command {
	return &cli.Command{
		Name: "cat", Usage: "the content of a version, as it is", ArgsUsage: "CONFIG", Flags: serverFlags(versionFlag("the version `N`")),
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, 1, 1); err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			f, err := cl.config(c.Context, c.Args().First())
			if err != nil {
				return err
			}
			resp, err := cl.do(c.Context, "GET", contentPath(f.Name, versionOf(c, "version", f.LatestVersion)), nil, nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(c.App.Writer, resp.Body)
			return err
		},
	}
}

func contentPath(config string, version int) string {
	return configPath(config, fmt.Sprintf("/versions/%d/content", version))
}

func configsDiffCommand() *cli.Command {
	return &cli.Command{
		Name: "diff", Usage: "how two versions differ", ArgsUsage: "CONFIG",
		Flags: serverFlags(
			&cli.IntFlag{Name: "from", Usage: "version `N`", DefaultText: "the one before --to", EnvVars: []string{"MUSTER_DIFF_FROM"}},
			&cli.IntFlag{Name: "to", Usage: "version `N`", DefaultText: "the latest", EnvVars: []string{"MUSTER_DIFF_TO"}}, outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			f, err := cl.config(c.Context, c.Args().First())
			if err != nil {
				return err
			}
			to := versionOf(c, "to", f.LatestVersion)
			from := versionOf(c, "from", to-1)
			var raw json.RawMessage
			query := url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
			if err := cl.json(c.Context, "GET", configPath(f.Name, "/diff"), query, nil, &raw); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			return printDiff(c.App.Writer, raw)
		}),
	}
}

func printDiff(w io.Writer, raw json.RawMessage) error {
	var d configDiff
	if err := json.Unmarshal(raw, &d); err != nil {
		return err
	}
	for _, change := range d.FileChanges {
		fmt.Fprintln(w, clean(change))
	}
	switch {
	case d.Equal:
		fmt.Fprintln(w, "they are the same")
	case d.Binary:
		fmt.Fprintln(w, "the contents differ; they are not text, or too large to be compared")
	}
	return printLines(w, d.Text)
}

// printLines prints text from afar, of which each line is made harmless.
func printLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, clean(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

var statusTitles = []string{"AGENT", "STATUS", "VERSION", "RUNNING", "WANTED", "REASON"}

func configsStatusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "where a config stands on each agent", ArgsUsage: "CONFIG",
		Flags: serverFlags(&cli.StringSliceFlag{Name: "status", Usage: "only those with the `STATUS`: unset, applying, applied, failed or deleted; a comma separates several", EnvVars: []string{"MUSTER_CONFIG_STATUS"}}, outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			query := url.Values{}
			if statuses := c.StringSlice("status"); len(statuses) > 0 {
				query.Set("status", strings.ToUpper(strings.Join(statuses, ",")))
			}
			raw, err := cl.listWhere(c.Context, configPath(c.Args().First(), "/status"), "statuses", query, 0)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, map[string]any{"statuses": nonNil(raw)})
			}
			statuses, err := decodeRows[configStatus](raw)
			if err != nil {
				return err
			}
			states, err := cl.agentStates(c.Context)
			if err != nil {
				return err
			}
			printConfigStatuses(c.App.Writer, statuses, states)
			return nil
		}),
	}
}

// printConfigStatuses shows the state of the agents, too, where one is not simply
// ONLINE: it may be what a config waits for.
func printConfigStatuses(w io.Writer, statuses []configStatus, states map[string]string) {
	titles, rows := statusTitles, make([][]string, len(statuses))
	for i, s := range statuses {
		rows[i] = statusRow(s.AgentID, s)
	}
	if slices.ContainsFunc(statuses, func(s configStatus) bool { return states[s.AgentID] != "" }) {
		titles = slices.Insert(slices.Clone(titles), 1, "AGENT IS")
		for i, s := range statuses {
			rows[i] = slices.Insert(rows[i], 1, states[s.AgentID])
		}
	}
	printTable(w, titles, rows)
}

func statusRow(first string, s configStatus) []string {
	status := s.Status
	if status == "" {
		status = "-"
	}
	return []string{first, status, versionWord(s.Version), versionWord(s.RunningVersion), versionWord(s.WantedVersion), oneLine(s.Reason)}
}

// versionWord is a version as a table shows it.
func versionWord(n int) string {
	switch n {
	case 0:
		return "-"
	case -1:
		return "none" // it shall go, or is gone
	}
	return strconv.Itoa(n)
}

func agentsConfigsCommand() *cli.Command {
	return &cli.Command{
		Name: "configs", Usage: "the configs that an agent shall hold and holds", ArgsUsage: "AGENT", Flags: serverFlags(outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			var raw json.RawMessage
			if err := cl.json(c.Context, "GET", agentPath(c.Args().First(), "/configs"), nil, nil, &raw); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.App.Writer, raw)
			}
			return printAgentConfigs(c.App.Writer, raw)
		}),
	}
}

func printAgentConfigs(w io.Writer, raw json.RawMessage) error {
	var all struct {
		Configs  []configStatus  `json:"configs"`
		Instance json.RawMessage `json:"instance"`
		Sources  []struct {
			Config  string  `json:"config"`
			Binding binding `json:"binding"`
		} `json:"sources"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	rows := make([][]string, len(all.Configs))
	for i, s := range all.Configs {
		rows[i] = append([]string{s.Kind}, statusRow(s.Name, s)...)
	}
	printTable(w, append([]string{"KIND", "CONFIG"}, statusTitles[1:]...), rows)
	for _, s := range all.Sources {
		fmt.Fprintf(w, "instance from %s, bound to %s\n", clean(s.Config), clean(s.Binding.String()))
	}
	if len(all.Instance) > 0 {
		return printJSON(w, all.Instance)
	}
	return nil
}
