package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/arguments"
)

// request is the body of POST /v1/commands.
type request struct {
	Type        string            `json:"type"`
	Name        string            `json:"name,omitempty"`
	Input       json.RawMessage   `json:"input,omitempty"`
	Target      selector          `json:"target"`
	Timeout     string            `json:"timeout,omitempty"`
	ExpiresIn   string            `json:"expires_in,omitempty"`
	Idempotent  bool              `json:"idempotent,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	WhenOffline string            `json:"when_offline,omitempty"`
	Rollout     *rollout          `json:"rollout,omitempty"`
}

// selector has one of its fields set.
type selector struct {
	Agents []string `json:"agents,omitempty"`
	All    bool     `json:"all,omitempty"`
	Where  string   `json:"where,omitempty"`
	Groups []string `json:"groups,omitempty"`
}

func (s selector) String() string {
	switch {
	case s.All:
		return "all"
	case s.Where != "":
		return "where " + s.Where
	case len(s.Groups) > 0:
		return "groups " + strings.Join(s.Groups, ", ")
	}
	return strings.Join(s.Agents, ", ")
}

type rollout struct {
	Canary       share  `json:"canary,omitempty" yaml:"canary"`
	Batch        share  `json:"batch,omitempty" yaml:"batch"`
	MaxFailures  share  `json:"max_failures,omitempty" yaml:"max_failures"`
	PauseBetween string `json:"pause_between,omitempty" yaml:"pause_between"`
	VanishAfter  string `json:"vanish_after,omitempty" yaml:"vanish_after"`
}

func (r *rollout) String() string {
	if r == nil {
		return ""
	}
	var parts []string
	for _, p := range [][2]string{
		{"canary", string(r.Canary)}, {"batch", string(r.Batch)}, {"max failures", string(r.MaxFailures)},
		{"pause between", r.PauseBetween}, {"vanish after", r.VanishAfter},
	} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	return strings.Join(parts, ", ")
}

// share is a count or a percentage. The server shows a count as a number.
type share string

func (s *share) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err != nil {
		text = string(b)
	}
	*s = share(text)
	return nil
}

// requestFlags describe a command and its targets.
func requestFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "all", Usage: "every agent that is known", EnvVars: []string{"MUSTER_RUN_ALL"}},
		&cli.StringSliceFlag{Name: "tag", Aliases: []string{"l"}, Usage: "agents with the tag `NAME=VALUE`; may be repeated, a comma separates several; all must hold", EnvVars: []string{"MUSTER_RUN_TAGS"}},
		&cli.StringFlag{Name: "where", Usage: "agents for which the `CEL` expression is true, such as 'os == \"linux\" && tags[\"env\"] != \"prod\"'", EnvVars: []string{"MUSTER_RUN_WHERE"}},
		&cli.StringSliceFlag{Name: "group", Aliases: []string{"g"}, Usage: "the members of the `GROUP`; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_RUN_GROUPS"}},
		&cli.StringFlag{Name: "type", Usage: "command `TYPE`", Value: "exec", EnvVars: []string{"MUSTER_RUN_TYPE"}},
		&cli.StringFlag{Name: "input", Usage: "input of the command as `JSON`; for exec, -- ARGV… writes it for you", EnvVars: []string{"MUSTER_RUN_INPUT"}},
		&cli.StringFlag{Name: "name", Usage: "a `NAME` for people", EnvVars: []string{"MUSTER_RUN_NAME"}},
		&cli.StringSliceFlag{Name: "label", Usage: "label `NAME=VALUE` to find the command by; may be repeated, a comma separates several", EnvVars: []string{"MUSTER_RUN_LABELS"}},
		&cli.StringFlag{Name: "timeout", Usage: "`TIME` one run may take, such as 30s", DefaultText: "the server's: 10m", EnvVars: []string{"MUSTER_RUN_TIMEOUT"}},
		&cli.StringFlag{Name: "expires-in", Usage: "`TIME` within which it has to start", DefaultText: "the server's: 1h", EnvVars: []string{"MUSTER_RUN_EXPIRES_IN"}},
		&cli.BoolFlag{Name: "idempotent", Usage: "it may be run again where it was interrupted", EnvVars: []string{"MUSTER_RUN_IDEMPOTENT"}},
		&cli.StringFlag{Name: "when-offline", Usage: "`RULE` for agents that are offline: cancel or queue", Value: "cancel", EnvVars: []string{"MUSTER_RUN_WHEN_OFFLINE"}},
		&cli.BoolFlag{Name: "wait-offline", Usage: "queue for agents that are offline and wait for them too", EnvVars: []string{"MUSTER_RUN_WAIT_OFFLINE"}},
		&cli.StringFlag{Name: "canary", Usage: "`N` or N% of the targets go first, alone", EnvVars: []string{"MUSTER_RUN_CANARY"}},
		&cli.StringFlag{Name: "batch", Usage: "at most `N` or N% of the targets at a time", EnvVars: []string{"MUSTER_RUN_BATCH"}},
		&cli.StringFlag{Name: "max-failures", Usage: "halt after more than `N` or N% of the targets failed (default in a rollout: 0)", EnvVars: []string{"MUSTER_RUN_MAX_FAILURES"}},
		&cli.StringFlag{Name: "pause-between", Usage: "`TIME` between the end of one target and the start of the next in its place", EnvVars: []string{"MUSTER_RUN_PAUSE_BETWEEN"}},
		&cli.StringFlag{Name: "vanish-after", Usage: "`TIME` after which an agent that was sent the command and is gone counts as failed", DefaultText: "the server's: 60s", EnvVars: []string{"MUSTER_RUN_VANISH_AFTER"}},
	}
}

func newRequest(c *cli.Context) (*request, error) {
	agents, argv, hasArgv := arguments.Split(c.Args().Slice())
	r := &request{
		Type: c.String("type"), Name: c.String("name"), Timeout: c.String("timeout"), ExpiresIn: c.String("expires-in"),
		Idempotent: c.Bool("idempotent"), Rollout: rolloutOf(c),
	}
	var err error
	if r.Target, err = selectorOf(c, agents); err != nil {
		return nil, err
	}
	if r.Labels, err = pairsOf("label", c.StringSlice("label")); err != nil {
		return nil, err
	}
	if r.WhenOffline, err = whenOffline(c); err != nil {
		return nil, err
	}
	r.Input, err = inputOf(r.Type, c.String("input"), argv, hasArgv)
	return r, err
}

// selectorOf makes one selector of the ways to name targets. Tags and where go
// together; nothing else does.
func selectorOf(c *cli.Context, agents []string) (selector, error) {
	terms, err := tagTerms(c.StringSlice("tag"))
	if err != nil {
		return selector{}, err
	}
	if where := c.String("where"); where != "" {
		terms = append([]string{"(" + where + ")"}, terms...)
	}
	s := selector{Agents: agents, All: c.Bool("all"), Where: strings.Join(terms, " && "), Groups: c.StringSlice("group")}
	ways := 0
	for _, used := range []bool{len(s.Agents) > 0, s.All, s.Where != "", len(s.Groups) > 0} {
		if used {
			ways++
		}
	}
	switch ways {
	case 0:
		return s, &codedError{exitNoTargets, "no targets: name agents, or say --all, --group, --tag or --where"}
	case 1:
		return s, nil
	}
	return s, usagef("name agents, or say --all, or --group, or choose by --tag and --where; not both")
}

// tagTerms writes NAME=VALUE pairs as CEL.
func tagTerms(pairs []string) (terms []string, err error) {
	for _, pair := range pairs {
		name, value, err := pairOf("tag", pair)
		if err != nil {
			return nil, err
		}
		terms = append(terms, fmt.Sprintf("tags[%s] == %s", strconv.Quote(name), strconv.Quote(value)))
	}
	return terms, nil
}

func pairOf(flag, pair string) (name, value string, err error) {
	name, value, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return "", "", usagef("--%s %q: want NAME=VALUE", flag, pair)
	}
	return name, value, nil
}

func pairsOf(flag string, pairs []string) (map[string]string, error) {
	m := map[string]string{}
	for _, pair := range pairs {
		name, value, err := pairOf(flag, pair)
		if err != nil {
			return nil, err
		}
		if _, twice := m[name]; twice {
			return nil, usagef("--%s %s is given twice", flag, name)
		}
		m[name] = value
	}
	return m, nil
}

func rolloutOf(c *cli.Context) *rollout {
	r := rollout{
		Canary: share(c.String("canary")), Batch: share(c.String("batch")), MaxFailures: share(c.String("max-failures")),
		PauseBetween: c.String("pause-between"), VanishAfter: c.String("vanish-after"),
	}
	if r == (rollout{}) {
		return nil
	}
	return &r
}

func whenOffline(c *cli.Context) (string, error) {
	switch rule := c.String("when-offline"); {
	case c.Bool("wait-offline"), rule == "queue":
		return "QUEUE", nil
	case rule == "cancel":
		return "CANCEL", nil
	default:
		return "", usagef("--when-offline %q: want cancel or queue", rule)
	}
}

func inputOf(kind, input string, argv []string, hasArgv bool) (json.RawMessage, error) {
	switch {
	case hasArgv && (input != "" || kind != "exec"):
		return nil, usagef("-- ARGV… is the input of exec; use it without --input and --type")
	case hasArgv && len(argv) == 0:
		return nil, usagef("nothing to run after --")
	case hasArgv:
		for i, arg := range argv {
			if !utf8.ValidString(arg) { // JSON would change it without a word
				return nil, usagef("argument %d after -- is not UTF-8: %q", i+1, cut(arg, 60))
			}
		}
		return json.Marshal(map[string][]string{"argv": argv})
	case input != "" && !json.Valid([]byte(input)):
		return nil, usagef("--input is not JSON: %s", cut(input, 60))
	case input != "":
		return json.RawMessage(input), nil
	case kind == "exec":
		return nil, usagef("exec needs -- ARGV… or --input")
	}
	return nil, nil
}
