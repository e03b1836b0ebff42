package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/musterhq/muster/coordinator/textdiff"
)

// How the folder's file differs from the versions that the server has.

// lookedBack is how many of a config's versions may be what the folder says.
const lookedBack = 100

// findVersion looks for a version that is what the folder says: among those that
// are bound, and else the newest.
func (p *planner) findVersion(ctx context.Context, c *configPlan) error {
	newest, err := rowsOf[configVersion](ctx, p.client, configPath(c.Name, "/versions"), "versions", lookedBack)
	if err != nil {
		return err
	}
	bound := map[int]bool{}
	for _, b := range c.have.Bindings {
		bound[b.Version] = true
		c.From = max(c.From, b.Version)
	}
	var base configVersion // what it is compared with
	for _, v := range newest {
		if v.Version == cmp.Or(c.From, c.have.LatestVersion) {
			base = v
		}
		same := v.SHA256 == hashOf(c.want.content) && len(fileChanges(c.want, v.File)) == 0
		if same && (c.Version == 0 || bound[v.Version] && !bound[c.Version]) {
			c.Version = v.Version
		}
	}
	if base.Version != c.Version {
		return p.compare(ctx, c, base)
	}
	return nil
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// whole fills in what an agent does where nothing is said.
func whole(name, kind string, f fileSpec) fileSpec {
	if kind == "PIPELINE" {
		f.Path = cmp.Or(f.Path, name)
	}
	if f.Mode = cmp.Or(f.Mode, "0600"); len(f.Mode) == 3 {
		f.Mode = "0" + f.Mode
	}
	if d, err := durationOf(cmp.Or(f.Timeout, "30s")); err == nil {
		f.Timeout = d.String()
	}
	return f
}

// fileChanges tells how the folder's file differs from that of a version, in
// what an agent would do.
func fileChanges(want configFile, file fileSpec) (changes []string) {
	to, from := whole(want.name, want.Kind, want.File), whole(want.name, want.Kind, file)
	for _, x := range [][3]string{
		{"path", from.Path, to.Path}, {"mode", from.Mode, to.Mode}, {"timeout", from.Timeout, to.Timeout},
		{"check_cmd", argvText(from.CheckCmd), argvText(to.CheckCmd)}, {"reload_cmd", argvText(from.ReloadCmd), argvText(to.ReloadCmd)},
	} {
		if x[1] != x[2] {
			changes = append(changes, fmt.Sprintf("%s: %s -> %s", x[0], x[1], x[2]))
		}
	}
	return changes
}

func argvText(argv []string) string {
	if len(argv) == 0 {
		return "none"
	}
	b, err := json.Marshal(argv)
	if err != nil {
		panic(err) // strings: cannot happen
	}
	return string(b)
}

// compare tells how the folder differs from a version.
func (p *planner) compare(ctx context.Context, c *configPlan, base configVersion) error {
	if base.Version == 0 { // there is none, or it is far back
		return nil
	}
	c.FileChanges = fileChanges(c.want, base.File)
	if !p.diff || base.SHA256 == hashOf(c.want.content) {
		return nil
	}
	old, err := p.client.content(ctx, c.Name, base.Version)
	if err != nil {
		return err
	}
	c.Diff, err = unifiedDiff(fmt.Sprintf("%s version %d", c.Name, base.Version), old, c.Name+" in the folder", c.want.content)
	return err
}

// unifiedDiff says so where the contents cannot be compared.
func unifiedDiff(fromName string, from []byte, toName string, to []byte) (string, error) {
	if !textdiff.Comparable(from) || !textdiff.Comparable(to) {
		return fmt.Sprintf("the contents differ (%d and %d bytes); they are not text, or too large to be compared\n", len(from), len(to)), nil
	}
	return textdiff.Unified(fromName, from, toName, to)
}
