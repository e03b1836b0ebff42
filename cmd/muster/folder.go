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
	Bindings    *scopes  `yaml:"bindings"` // nil: they stay as they are; empty: there shall be none
	File        fileSpec `yaml:"file"`
	ContentFile string   `yaml:"content_file"` // beside this file
	Content     *string  `yaml:"content"`      // instead
	Note        string   `yaml:"note"`
	Rollout     *rollout `yaml:"rollout"` // how a new version gets to those that have an older one; default all at once
	KeepOnHalt  bool     `yaml:"keep_on_halt"`

	name    string
	content []byte
}

// version is the file as a version to be made.
func (f configFile) version() versionBody {
	v := versionBody{Content: f.content, Note: f.Note}
	if !f.File.empty() {
		v.File = &f.File
	}
	return v
}

// path is where the file goes on an agent.
func (f configFile) path() string {
	switch {
	case f.File.Path != "":
		return f.File.Path
	case f.Kind == "INSTANCE":
		return "instance"
	}
	return f.name
}

// scopes are for whom the config is.
type scopes struct {
	Fleet  bool     `yaml:"fleet"`
	Groups []string `yaml:"groups"`
	Agents []string `yaml:"agents"`
}

// at are the scopes as bindings to a version; nil has none.
func (s *scopes) at(version int) (bindings []binding) {
	if s == nil {
		return nil
	}
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

// scopesIn are those of bindings.
func scopesIn(bindings []binding) *scopes {
	s := &scopes{}
	for _, b := range bindings {
		switch {
		case b.Group != "":
			s.Groups = append(s.Groups, b.Group)
		case b.Agent != "":
			s.Agents = append(s.Agents, b.Agent)
		default:
			s.Fleet = true
		}
	}
	return s
}

// readFolder reads and checks all of a folder. What the server judges, such as
// names and expressions, is left to it. Nothing outside of the folder is read: it
// may come from somebody who may not read what its user may.
func readFolder(dir string) (f folder, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return f, err
	}
	defer root.Close()
	err = readYAML(root, "groups.yaml", &f.groups)
	noGroups := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noGroups {
		return f, err
	}
	paths, err := configPaths(root)
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
		c, err := readConfigFile(root, path)
		if err != nil {
			return f, err
		}
		f.configs = append(f.configs, c)
	}
	return f, onePathEach(f.configs)
}

// onePathEach refuses two configs for one file; INSTANCE configs are merged into
// one.
func onePathEach(configs []configFile) error {
	owner := map[string]configFile{}
	for _, c := range configs {
		other, taken := owner[c.path()]
		if taken && (c.Kind != "INSTANCE" || other.Kind != "INSTANCE") {
			return fmt.Errorf("configs %q and %q have the same path, %s", other.name, c.name, c.path())
		}
		owner[c.path()] = c
	}
	return nil
}

// configPaths lists the *.yaml of the folder's configs, by name. A file that looks
// like one and is not read would be a surprise.
func configPaths(root *os.Root) (paths []string, err error) {
	const dir = "configs"
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", filepath.Join(root.Name(), dir), bare(err))
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case ".yaml":
			paths = append(paths, path)
		case ".yml":
			return nil, fmt.Errorf("%s: want the ending .yaml", filepath.Join(root.Name(), path))
		}
	}
	return paths, nil
}

func readConfigFile(root *os.Root, name string) (c configFile, err error) {
	if err := readYAML(root, name, &c); err != nil {
		return c, err
	}
	path := filepath.Join(root.Name(), name)
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
		if c.content, err = readRegular(root, filepath.Join(filepath.Dir(name), c.ContentFile), maxContent); err != nil {
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
func readYAML(root *os.Root, name string, out any) error {
	b, err := readRegular(root, name, maxYAML)
	if err != nil {
		return err
	}
	path := filepath.Join(root.Name(), name)
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(out); err != nil && !errors.Is(err, io.EOF) { // an empty file says nothing
		return fmt.Errorf("%s: %w", path, plainYAML(err))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: one document is wanted, there is more", path)
	}
	return nil
}

// maxYAML is more than a file of the largest content needs, as base64.
const maxYAML = 16 << 20

// readRegular reads a file below the root: what is there as a file, not what a
// pipe or a device may give for ever.
func readRegular(root *os.Root, name string, limit int) ([]byte, error) {
	path := filepath.Join(root.Name(), name)
	info, err := root.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, bare(err))
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, bare(err))
	}
	defer f.Close()
	return readLimited(f, path, limit)
}

// bare is an error without the name that the system knows the file by.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
