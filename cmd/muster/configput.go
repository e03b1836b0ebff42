package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func configsPutCommand() *cli.Command {
	return &cli.Command{
		Name: "put", Usage: "add a version of a config, and make the config if it is not there; it reaches nobody until bind or a rollout wants it",
		ArgsUsage: "CONFIG FILE", Description: "FILE may be -, the standard input. What is not said of the file on the agents stays as in the latest version.",
		Flags: serverFlags(
			&cli.StringFlag{Name: "kind", Usage: "`KIND` of a new config: pipeline, a file; or instance, a part of the agent's JSON document", Value: "pipeline", EnvVars: []string{"MUSTER_CONFIG_KIND"}},
			&cli.StringFlag{Name: "description", Usage: "`TEXT` for people, of a new config", EnvVars: []string{"MUSTER_CONFIG_DESCRIPTION"}},
			&cli.StringFlag{Name: "path", Usage: "`PATH` in the agent's config folder", DefaultText: "the config's name", EnvVars: []string{"MUSTER_CONFIG_PATH"}},
			&cli.StringFlag{Name: "mode", Usage: "octal `MODE` of a new file", DefaultText: "the agent's: 0600", EnvVars: []string{"MUSTER_CONFIG_MODE"}},
			&cli.StringFlag{Name: "check-cmd", Usage: "`COMMAND` that judges the staged file {}: words, or a JSON array; empty: none", EnvVars: []string{"MUSTER_CONFIG_CHECK_CMD"}},
			&cli.StringFlag{Name: "reload-cmd", Usage: "`COMMAND` to run when the file is in place: words, or a JSON array; empty: none", EnvVars: []string{"MUSTER_CONFIG_RELOAD_CMD"}},
			&cli.StringFlag{Name: "timeout", Usage: "`TIME` that each of both may take", DefaultText: "the agent's: 30s", EnvVars: []string{"MUSTER_CONFIG_TIMEOUT"}},
			&cli.StringFlag{Name: "note", Usage: "`WHY`, for those who read it later", EnvVars: []string{"MUSTER_CONFIG_NOTE"}},
			&cli.IntFlag{Name: "base-version", Usage: "only if version `N` is still the latest", DefaultText: "not checked", EnvVars: []string{"MUSTER_CONFIG_BASE_VERSION"}},
			outputFlag()),
		Action: asking(2, 2, putVersion),
	}
}

func putVersion(c *cli.Context, cl *client, asJSON bool) error {
	name := c.Args().First()
	content, err := readFileOrInput(c, c.Args().Get(1))
	if err != nil {
		return err
	}
	have, err := cl.findConfig(c.Context, name)
	if err != nil {
		return err
	}
	var file fileSpec
	if have != nil && have.LatestVersion > 0 {
		latest, err := cl.version(c.Context, name, have.LatestVersion)
		if err != nil {
			return err
		}
		file = latest.File
	}
	if err := fileFlags(c, &file); err != nil {
		return err
	}
	version, kind := versionBody{content, &file, c.String("note")}, strings.ToUpper(c.String("kind"))
	switch {
	case have == nil:
		if err := makeConfig(c, cl, name, kind, version); err != nil {
			return err
		}
	case c.IsSet("kind") && kind != have.Kind:
		return usagef("--kind %s: config %q is %s, and stays so; delete it first", c.String("kind"), name, have.Kind)
	}
	raw, v, err := cl.addVersion(c.Context, name, version, c.Int("base-version"))
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.App.Writer, raw)
	}
	if have != nil && v.Version == have.LatestVersion {
		tell(c, asJSON, "%s: version %d is the same; nothing was changed", name, v.Version)
	} else {
		tell(c, asJSON, "%s: version %d", name, v.Version)
	}
	return nil
}

// makeConfig makes the head of a new config, if its first version will do.
func makeConfig(c *cli.Context, cl *client, name, kind string, first versionBody) error {
	if err := cl.tryVersion(c.Context, name, kind, first); err != nil {
		return err
	}
	_, err := cl.putConfig(c.Context, configBody{Name: name, Kind: kind, Description: c.String("description")}, "")
	return err
}

// maxContent is what the server takes of a version.
const maxContent = 4 << 20

func readFileOrInput(c *cli.Context, path string) ([]byte, error) {
	if path == "-" {
		return readLimited(c.App.Reader, "the standard input", maxContent)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, path, maxContent)
}

// readLimited does not read on what is too large.
func readLimited(r io.Reader, what string, limit int) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > limit {
		return nil, usagef("%s is over %d bytes, which is the limit", what, limit)
	}
	return content, nil
}

// fileFlags changes what the flags say of a file.
func fileFlags(c *cli.Context, file *fileSpec) (err error) {
	for flag, to := range map[string]*string{"path": &file.Path, "mode": &file.Mode, "timeout": &file.Timeout} {
		if c.IsSet(flag) {
			*to = c.String(flag)
		}
	}
	for flag, to := range map[string]*[]string{"check-cmd": &file.CheckCmd, "reload-cmd": &file.ReloadCmd} {
		if c.IsSet(flag) {
			if *to, err = argvOf(flag, c.String(flag)); err != nil {
				return err
			}
		}
	}
	return nil
}

// argvOf reads a program with its arguments: words, or a JSON array where the
// words have spaces in them.
func argvOf(flag, text string) (argv []string, err error) {
	if !strings.HasPrefix(text, "[") {
		if strings.ContainsAny(text, `"'`) { // no shell reads them
			return nil, usagef(`--%s %s: quotes are not read; want a JSON array where words have spaces or quotes in them, such as ["sh","-c","exit 0"]`, flag, cut(text, 60))
		}
		return strings.Fields(text), nil
	}
	if err := json.Unmarshal([]byte(text), &argv); err != nil {
		return nil, usagef("--%s %q: want words, or a JSON array of strings", flag, cut(text, 60))
	}
	return argv, nil
}

// scopeFlags name where a version is wanted.
func scopeFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.BoolFlag{Name: "fleet", Usage: "for every agent", EnvVars: []string{"MUSTER_BIND_FLEET"}},
		&cli.StringSliceFlag{Name: "group", Aliases: []string{"g"}, Usage: "for the members of the `GROUP`; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_BIND_GROUPS"}},
		&cli.StringSliceFlag{Name: "agent", Usage: "for the agent with this `ID`; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_BIND_AGENTS"}},
		versionFlag("the version `N`"),
		&cli.BoolFlag{Name: "remove", Usage: "take the bindings away instead; who has none left deletes the file", EnvVars: []string{"MUSTER_BIND_REMOVE"}},
	}, more...)
}

// boundBy is what bind makes of a config's bindings.
func boundBy(c *cli.Context, f config) ([]binding, error) {
	wanted := (&scopes{Fleet: c.Bool("fleet"), Groups: c.StringSlice("group"), Agents: c.StringSlice("agent")}).at(0)
	if len(wanted) == 0 {
		return nil, usagef("say for whom: --fleet, --group or --agent")
	}
	bindings := slices.DeleteFunc(slices.Clone(f.Bindings), func(b binding) bool { return slices.Contains(wanted, b.scope()) })
	if c.Bool("remove") {
		return bindings, nil
	}
	n := versionOf(c, "version", f.LatestVersion)
	if n == 0 {
		return nil, usagef("config %q has no version yet; muster configs put adds one", f.Name)
	}
	for _, b := range wanted {
		b.Version = n
		bindings = append(bindings, b)
	}
	return bindings, nil
}

func configsBindCommand() *cli.Command {
	return &cli.Command{
		Name: "bind", Usage: "want a version of a config for the fleet, groups or agents, all at once (a rollout goes by steps)", ArgsUsage: "CONFIG",
		Flags: serverFlags(scopeFlags(dryRunFlag("say who would get what, and change nothing"), yesFlag(), outputFlag())...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			return bind(c, cl, asJSON, c.Bool("dry-run"))
		}),
	}
}

func configsPreviewCommand() *cli.Command {
	return &cli.Command{
		Name: "preview", Usage: "who would get what by bind", ArgsUsage: "CONFIG", Flags: serverFlags(scopeFlags(outputFlag())...),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error { return bind(c, cl, asJSON, true) }),
	}
}

func bind(c *cli.Context, cl *client, asJSON, dryRun bool) error {
	f, err := cl.config(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	body := configBody{Name: f.Name, Description: f.Description}
	if body.Bindings, err = boundBy(c, f); err != nil {
		return err
	}
	p, err := cl.previewConfig(c.Context, body)
	if err != nil {
		return err
	}
	if dryRun {
		if err := showConfigPreview(c, asJSON, p); err != nil || asJSON {
			return err
		}
		return tellUnbound(c, cl)
	}
	if err := largeShare(c.Bool("yes"), p.Changed, p.Fleet); err != nil {
		return err
	}
	raw, err := cl.putConfig(c.Context, body, f.ETag)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.App.Writer, raw)
	}
	tell(c, asJSON, "%s: %s", f.Name, changeWords(p))
	return tellUnbound(c, cl)
}

// tellUnbound names agents of a bind that there are none of.
func tellUnbound(c *cli.Context, cl *client) error {
	if c.Bool("remove") {
		return nil
	}
	unknown, err := cl.unknownAgents(c.Context, c.StringSlice("agent"))
	if len(unknown) > 0 {
		tell(c, false, "note: not known, so far: %s", namesOf(unknown))
	}
	return err
}

func showConfigPreview(c *cli.Context, asJSON bool, p configPreview) error {
	if asJSON {
		return printJSON(c.App.Writer, p)
	}
	printConfigChanges(c, p)
	fmt.Fprintf(c.App.Writer, "%s; nothing was changed\n", changeWords(p))
	return nil
}

func printConfigChanges(c *cli.Context, p configPreview) {
	rows := make([][]string, len(p.Changes))
	for i, ch := range p.Changes {
		rows[i] = []string{ch.AgentID, versionWord(ch.FromVersion), versionWord(ch.ToVersion)}
	}
	printTable(c.App.Writer, []string{"AGENT", "FROM", "TO"}, rows)
}

// changeWords is such as "+2/−0/~1 of 12 agents": those who get it, lose it, and
// get another version.
func changeWords(p configPreview) string {
	gain, lose := 0, 0
	for _, ch := range p.Changes {
		switch {
		case ch.FromVersion == 0:
			gain++
		case ch.ToVersion == 0:
			lose++
		}
	}
	return fmt.Sprintf("+%d/-%d/~%d of %d agents", gain, lose, len(p.Changes)-gain-lose, p.Fleet)
}

func configsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name: "delete", Usage: "delete a config with its versions; agents that hold the file delete it", ArgsUsage: "CONFIG",
		Flags: serverFlags(dryRunFlag("say who would lose it, and change nothing"), yesFlag(), outputFlag()),
		Action: asking(1, 1, func(c *cli.Context, cl *client, asJSON bool) error {
			f, err := cl.config(c.Context, c.Args().First())
			if err != nil {
				return err
			}
			p, err := cl.previewConfig(c.Context, configBody{Name: f.Name})
			if err != nil {
				return err
			}
			if c.Bool("dry-run") {
				return showConfigPreview(c, asJSON, p)
			}
			if err := largeShare(c.Bool("yes"), p.Changed, p.Fleet); err != nil {
				return err
			}
			if err := cl.remove(c.Context, configPath(f.Name, ""), f.ETag); err != nil {
				return err
			}
			tell(c, asJSON, "%s: deleted; %s", f.Name, changeWords(p))
			return nil
		}),
	}
}
