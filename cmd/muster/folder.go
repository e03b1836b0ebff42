package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// folder is what `muster apply` makes true. It holds groups.yaml, a list of
// groups, and configs/NAME.yaml, one for each config; both may be missing, but
// not both of them.
type folder struct {
	groups  []groupBody
	configs []configFile
}

// configFile is configs/NAME.yaml.
type configFile struct {
	Kind        string   `yaml:"kind"` // pipeline or instance; default pipeline
	Description string   `yaml:"description"`
	Bindings    scopes   `yaml:"bindings"`
	File        fileSpec `yaml:"file"`
	ContentFile string   `yaml:"content_file"` // beside this file
	Content     *string  `yaml:"content"`      // instead
	Note        string   `yaml:"note"`
	Rollout     *rollout `yaml:"rollout"` // how a new version gets to those that have an older one; default all at once
	KeepOnHalt  bool     `yaml:"keep_on_halt"`

	name    string
	content []byte
}

// scopes are for whom the config is.
type scopes struct {
	Fleet  bool     `yaml:"fleet"`
	Groups []string `yaml:"groups"`
	Agents []string `yaml:"agents"`
}

// at are the scopes as bindings to a version.
func (s scopes) at(version int) (bindings []binding) {
	if s.Fleet {
		bindings = append(bindings, binding{Fleet: true, Version: version})
	}
	for _, g := range s.Groups {
		bindings = append(bindings, binding{Group: g, Version: version})
	}
	for _, a := range s.Agents {
		bindings = append(bindings, binding{Agent: a, Version: version})
	}
	return bindings
}

// readFolder reads and checks all of a folder. What the server judges, such as
// names and expressions, is left to it.
func readFolder(dir string) (f folder, err error) {
	if _, err := os.Stat(dir); err != nil {
		return f, err
	}
	err = readYAML(filepath.Join(dir, "groups.yaml"), &f.groups)
	noGroups := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noGroups {
		return f, err
	}
	paths, err := configPaths(filepath.Join(dir, "configs"))
	if err != nil {
		return f, err
	}
	if noGroups && len(paths) == 0 {
		return f, fmt.Errorf("%s has nothing to apply: neither groups.yaml nor configs/NAME.yaml", dir)
	}
	for i, g := range f.groups {
		if slices.ContainsFunc(f.groups[:i], func(other groupBody) bool { return other.Name == g.Name }) {
			return f, fmt.Errorf("%s: group %q is there twice", filepath.Join(dir, "groups.yaml"), g.Name)
		}
		slices.Sort(f.groups[i].Agents)
		f.groups[i].Agents = slices.Compact(f.groups[i].Agents)
	}
	for _, path := range paths {
		c, err := readConfigFile(path)
		if err != nil {
			return f, err
		}
		f.configs = append(f.configs, c)
	}
	return f, nil
}

// configPaths lists the *.yaml of a folder, by name. A file that looks like one
// and is not read would be a surprise.
func configPaths(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case ".yaml":
			paths = append(paths, path)
		case ".yml":
			return nil, fmt.Errorf("%s: want the ending .yaml", path)
		}
	}
	return paths, nil
}

func readConfigFile(path string) (c configFile, err error) {
	if err := readYAML(path, &c); err != nil {
		return c, err
	}
	c.name = strings.TrimSuffix(filepath.Base(path), ".yaml")
	c.Kind = strings.ToUpper(c.Kind)
	if c.Kind == "" {
		c.Kind = "PIPELINE"
	}
	switch {
	case (c.Content == nil) == (c.ContentFile == ""):
		return c, fmt.Errorf("%s: say content_file: FILE, beside it, or content: TEXT", path)
	case c.Content != nil:
		c.content = []byte(*c.Content)
	default:
		if c.content, err = readContentFile(filepath.Join(filepath.Dir(path), c.ContentFile)); err != nil {
			return c, fmt.Errorf("%s: %w", path, err)
		}
	}
	seen := map[binding]bool{}
	for _, b := range c.Bindings.at(0) {
		if seen[b] {
			return c, fmt.Errorf("%s: %s is bound twice", path, b)
		}
		seen[b] = true
	}
	return c, nil
}

// readYAML reads one document. A field that is not known, or given twice, is an
// error.
func readYAML(path string, out any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(out); err != nil && !errors.Is(err, io.EOF) { // an empty file says nothing
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: one document is wanted, there is more", path)
	}
	return nil
}
