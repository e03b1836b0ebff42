package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func applyCommand() *cli.Command {
	return &cli.Command{
		Name: "apply", Usage: "make groups and configs what a folder says",
		Description: "DIR holds groups.yaml, a list of groups (name, description, where, agents), and configs/NAME.yaml for each config:\n" +
			"kind, description, bindings (fleet, groups, agents), file (path, mode, check_cmd, reload_cmd, timeout), content_file or content,\n" +
			"rollout (canary, batch, max_failures, pause_between, vanish_after), keep_on_halt and note.\n" +
			"Without bindings: those that are there stay; bindings: {} takes them all away, and the file from the agents.\n" +
			"A new version is made only where content or file differ. It is bound where nothing was bound, and else brought out by a rollout.\n" +
			"What the folder does not name is left alone.\n" +
			"Exit codes: 0 nothing to do, or done, 1 usage or server error, 2 a rollout failed, 3 some agents could not be reached yet, 130 interrupted.",
		Flags: serverFlags(
			&cli.StringFlag{Name: "folder", Aliases: []string{"f"}, Usage: "the folder `DIR`", EnvVars: []string{"MUSTER_APPLY_FOLDER"}},
			dryRunFlag("show the changes and who gets them, and change nothing"), yesFlag(), detachFlag(), waitOfflineFlag(), outputFlag()),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			if c.String("folder") == "" {
				return usagef("say which folder: -f DIR")
			}
			f, err := readFolder(c.String("folder"))
			if err != nil {
				return err
			}
			dryRun := c.Bool("dry-run")
			plan, err := (&planner{client: cl, diff: dryRun}).plan(c.Context, f)
			if err != nil {
				return err
			}
			a := &applier{client: cl, plan: plan, watcher: newWatcher(c, cl, false), detach: c.Bool("detach")}
			out := c.App.Writer
			if asJSON {
				a.watcher.stdout, out = io.Discard, io.Discard
				defer func() { _ = printJSON(c.App.Writer, plan) }() // of a broken pipe nobody hears
			}
			printPlan(out, plan)
			if err := plan.check(c.Context, cl); err != nil {
				return fmt.Errorf("nothing was changed: %w", err)
			}
			if dryRun {
				fmt.Fprintln(out, "nothing was changed")
				return nil
			}
			if plan.empty() {
				fmt.Fprintln(out, "nothing to do")
				return nil
			}
			if err := plan.checkShares(c.Bool("yes")); err != nil {
				return err
			}
			return a.apply(c.Context)
		}),
	}
}

func (p *applyPlan) empty() bool {
	return !slices.ContainsFunc(p.Groups, func(g *groupPlan) bool { return g.Change != unchanged }) &&
		!slices.ContainsFunc(p.Configs, func(c *configPlan) bool { return c.Change != unchanged })
}

// checkShares asks for --yes when one change is for more than half of a fleet
// that is not small.
func (p *applyPlan) checkShares(yes bool) error {
	for _, g := range p.Groups {
		if err := largeShare(yes, g.Joining+g.Leaving, g.Fleet); err != nil {
			return fmt.Errorf("group %s: %w", g.Name, err)
		}
	}
	for _, c := range p.Configs {
		if err := largeShare(yes, c.affected, c.fleet); err != nil {
			return fmt.Errorf("config %s: %w", c.Name, err)
		}
	}
	return nil
}

func printPlan(w io.Writer, p *applyPlan) {
	for _, g := range p.Groups {
		if g.Change == unchanged {
			fmt.Fprintf(w, "group %s: no change\n", clean(g.Name))
			continue
		}
		fmt.Fprintf(w, "group %s: %s, %d of %d agents, %d join, %d leave\n", clean(g.Name), strings.ToLower(string(g.Change)), g.Total, g.Fleet, g.Joining, g.Leaving)
		if len(g.leavers) > 0 {
			fmt.Fprintln(w, "  leave:", clean(namesOf(g.leavers)))
		}
		for _, note := range g.notes {
			fmt.Fprintln(w, " ", clean(note))
		}
	}
	for _, c := range p.Configs {
		fmt.Fprintf(w, "config %s: %s\n", clean(c.Name), clean(c.words()))
		if len(c.Losing) > 0 {
			fmt.Fprintln(w, "  it goes from", clean(namesOf(c.Losing)))
		}
		for _, change := range c.FileChanges {
			fmt.Fprintln(w, " ", clean(change))
		}
		for line := range strings.Lines(c.Diff) {
			fmt.Fprintln(w, " ", clean(strings.TrimRight(line, "\n")))
		}
	}
	if len(p.OtherGroups)+len(p.OtherConfigs) > 0 {
		fmt.Fprintf(w, "left alone, as the folder does not name them: %d groups, %d configs\n", len(p.OtherGroups), len(p.OtherConfigs))
	}
}

// words say what is to be done.
func (c *configPlan) words() string {
	if c.Change == unchanged {
		return fmt.Sprintf("no change, version %d", c.Version)
	}
	parts := []string{strings.ToLower(string(c.Change))}
	if c.Version == 0 {
		parts = append(parts, "a new version")
	} else {
		parts = append(parts, fmt.Sprintf("version %d", c.Version))
	}
	if c.From > 0 && c.From != c.Version {
		parts[len(parts)-1] += fmt.Sprintf(" after %d", c.From)
	}
	if len(c.Bindings) == 0 {
		parts = append(parts, "bound to nobody")
	} else if c.putHead {
		var scopes []binding
		for _, b := range c.Bindings {
			scopes = append(scopes, b.scope())
		}
		parts = append(parts, "bound to "+bindingList(scopes))
	}
	if c.rollOut {
		plan := "all at once"
		if c.want.Rollout != nil {
			plan = c.want.Rollout.String()
		}
		parts = append(parts, "rollout ("+plan+")")
	}
	return strings.Join(append(parts, c.Effect), ", ")
}

// applier does what a plan says.
type applier struct {
	client  *client
	plan    *applyPlan
	watcher *watcher
	detach  bool
}

// apply stops at the first error, and at the first rollout that fails: what
// comes after it is not done. Agents that could not be reached are told at the
// end.
func (a *applier) apply(ctx context.Context) error {
	for _, g := range a.plan.Groups {
		if g.Change == unchanged {
			continue
		}
		if _, err := a.client.putGroup(ctx, g.want, g.have.ETag); err != nil {
			return fmt.Errorf("group %q: %w", g.Name, err)
		}
	}
	var unreached error
	for _, c := range a.plan.Configs {
		if c.Change == unchanged {
			continue
		}
		err := a.applyConfig(ctx, c)
		if endsWith(err, exitUnreached) {
			unreached = err
		} else if err != nil {
			return naming(fmt.Sprintf("config %q", c.Name), err)
		}
	}
	if unreached == nil {
		fmt.Fprintln(a.watcher.stdout, "done")
	}
	return unreached
}

// naming says in an error what it is about, and keeps its exit code.
func naming(what string, err error) error {
	if coded := (*codedError)(nil); errors.As(err, &coded) {
		text := coded.text
		if text == "" {
			text = "the rollout failed"
		}
		return &codedError{coded.code, what + ": " + text}
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (a *applier) applyConfig(ctx context.Context, c *configPlan) error {
	body := c.head()
	if c.have == nil {
		if _, err := a.client.putConfig(ctx, body, ""); err != nil {
			return err
		}
	}
	if err := a.makeVersion(ctx, c); err != nil {
		return err
	}
	if c.putHead && (c.have != nil || len(c.Bindings) > 0) {
		now, err := a.client.config(ctx, c.Name) // a version has changed its etag
		if err != nil {
			return err
		}
		if c.have != nil && !slices.Equal(now.Bindings, c.have.Bindings) {
			return errors.New("somebody else has changed its bindings meanwhile; apply again")
		}
		body.Bindings = c.Bindings
		if _, err := a.client.putConfig(ctx, body, now.ETag); err != nil {
			return err
		}
	}
	if c.rollOut {
		return a.rollOut(ctx, c)
	}
	return nil
}

// makeVersion makes the version that the folder says, unless there is one, and
// fills it in where it was not known yet.
func (a *applier) makeVersion(ctx context.Context, c *configPlan) error {
	if c.Version == 0 {
		base := 0
		if c.have != nil {
			base = c.have.LatestVersion
		}
		_, v, err := a.client.addVersion(ctx, c.Name, c.want.version(), base)
		if err != nil {
			return err
		}
		c.Version = v.Version
	}
	for i, b := range c.Bindings {
		if b.Version == 0 {
			c.Bindings[i].Version = c.Version
		}
	}
	return nil
}

// rollOut starts a rollout, or joins the one that is under way to that version,
// and follows it.
func (a *applier) rollOut(ctx context.Context, c *configPlan) error {
	raw, r, err := a.underWay(ctx, c)
	if err == nil && r.ID == "" {
		raw, r, err = a.client.startRollout(ctx, c.Name, c.rollout(c.Version), false)
	}
	if hasCode(err, "NO_TARGETS") {
		return nil // nobody holds it
	}
	if err != nil {
		return err
	}
	c.Rollout = raw
	if a.detach {
		fmt.Fprintf(a.watcher.stdout, "config %s: rollout %s goes on\n", clean(c.Name), r.ID)
		return nil
	}
	err = a.watcher.watch(ctx, raw, r)
	if raw, _, errAfter := a.client.rollout(ctx, r.ID, 0); errAfter == nil {
		c.Rollout = raw
	}
	if endsWith(err, exitNoTargets) {
		return nil
	}
	return err
}

// underWay is the rollout of the config to the version, if there is one.
func (a *applier) underWay(ctx context.Context, c *configPlan) (raw json.RawMessage, r configRollout, err error) {
	if c.have == nil || c.have.RolloutID == "" {
		return nil, r, nil
	}
	raw, r, err = a.client.rollout(ctx, c.have.RolloutID, 0)
	if err != nil || r.Version != c.Version || r.State != "RUNNING" && r.State != "PAUSED" {
		return nil, configRollout{}, err
	}
	return raw, r, nil
}
