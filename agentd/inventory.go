package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// inventory is what is in the plugin folder. It looks again every few seconds
// and asks new and changed plugins to describe themselves.
//
// What a plugin says of itself is for people: one that knows no "describe", or
// fails at it, is run all the same and taken to speak contract 1. Only one that
// says that it speaks another contract is not run.
type inventory struct {
	folder  plugin.Folder
	agent   string
	log     *slog.Logger
	changed func() // the list is not what it was

	// For the goroutine in run alone.
	asked  map[string]answer // by name
	warned string            // what was wrong with the folder when it was last looked at

	mu      sync.Mutex
	types   []string
	plugins []*musterv1.Plugin
	foreign map[string]int // contracts that are not ours, by name
}

// answer is what came of asking the program that a stamp stands for.
type answer struct {
	stamp       string
	description plugin.Description
	err         error
}

const (
	maxPlugins     = 256 // that are listed
	maxTypeName    = 64  // longer ones no coordinator takes as a type
	maxVersion     = 64
	maxDescription = 256
	describeAtOnce = 2
)

// newInventory looks at the names at once; run asks.
func newInventory(f plugin.Folder, agent string, log *slog.Logger, changed func()) *inventory {
	i := &inventory{folder: f, agent: agent, log: log, changed: changed, asked: map[string]answer{}}
	i.publish(i.look())
	return i
}

// list returns the command types that the plugins make, and all that is in the
// folder.
func (i *inventory) list() ([]string, []*musterv1.Plugin) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.types, i.plugins
}

// refuses says why a plugin that could be started is not run.
func (i *inventory) refuses(name string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c := i.foreign[name]; c != 0 {
		return errForeign(name, c)
	}
	return nil
}

func errForeign(name string, contract int) error {
	return fmt.Errorf("plugin %q speaks contract %d, this agent speaks %d", name, contract, plugin.Contract)
}

// run looks every so often until ctx ends.
func (i *inventory) run(ctx context.Context, every time.Duration) {
	if i.folder == "" {
		return
	}
	plugin.KillMarked(i.marks()...) // what an earlier agent did not see the end of
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		entries := i.look()
		changed := i.publish(entries)
		if i.ask(ctx, entries) && ctx.Err() == nil {
			changed = i.publish(entries) || changed
		}
		if changed {
			i.changed()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look reads the folder. Of what cannot be listed, what cannot be run goes first.
func (i *inventory) look() []plugin.Entry {
	entries, err := i.folder.Entries()
	trouble := ""
	switch {
	case err != nil:
		trouble = err.Error()
	case len(entries) > maxPlugins:
		trouble = fmt.Sprintf("%d files, of which %d are listed", len(entries), maxPlugins)
	}
	if trouble != "" && trouble != i.warned {
		i.log.Warn("plugin folder", "dir", string(i.folder), "err", trouble)
	}
	i.warned = trouble
	for n := range entries {
		switch e := &entries[n]; {
		case builtIn(e.Name):
			e.Err = fmt.Errorf("plugin %q: the type of that name is built in", e.Name)
		case len(e.Name) > maxTypeName:
			e.Name, e.Err = e.Name[:maxTypeName], fmt.Errorf("plugin %q: a type has at most %d letters", e.Name, maxTypeName)
		}
	}
	if len(entries) > maxPlugins {
		slices.SortStableFunc(entries, func(a, b plugin.Entry) int {
			switch {
			case a.Err == nil && b.Err != nil:
				return -1
			case a.Err != nil && b.Err == nil:
				return 1
			}
			return strings.Compare(a.Name, b.Name)
		})
		entries = entries[:maxPlugins]
	}
	return entries
}

// ask lets new and changed plugins describe themselves, two at a time. It
// reports whether any was asked.
func (i *inventory) ask(ctx context.Context, entries []plugin.Entry) (any bool) {
	known := make(map[string]answer, len(entries))
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(describeAtOnce)
	for _, e := range entries {
		if a, ok := i.asked[e.Name]; ok && a.stamp == e.Stamp {
			mu.Lock()
			known[e.Name] = a
			mu.Unlock()
			continue
		}
		if e.Err != nil {
			continue
		}
		any = true
		g.Go(func() error {
			d, err := i.describe(ctx, e)
			if err != nil && ctx.Err() == nil {
				i.log.Warn("plugin does not describe itself", "type", e.Name, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			known[e.Name] = answer{e.Stamp, d, err}
			return nil
		})
	}
	_ = g.Wait()
	i.asked = known
	return any
}

func (i *inventory) describe(ctx context.Context, e plugin.Entry) (plugin.Description, error) {
	asks, err := plugin.Describes(e.Path)
	if err != nil || !asks {
		return plugin.Description{Contract: plugin.Contract}, err
	}
	c := plugin.Command{Type: e.Name, AgentID: i.agent}
	d, err := plugin.Describe(ctx, e.Path, plugin.Program{Env: plugin.Environ(append(c.Environment(), i.marks()...)...)})
	if err == nil && len(d.Types) > 0 && !slices.Contains(d.Types, e.Name) {
		err = fmt.Errorf("describe: its types are %.200q; the file's name is the type all the same", d.Types)
	}
	return d, err
}

// marks are in the environment of each program that describes itself.
func (i *inventory) marks() []string {
	return []string{"MUSTER_AGENT_ID=" + i.agent, "MUSTER_DESCRIBE=1"}
}

// publish makes entries, and what is known of them, the list; true: it is
// another one than before.
func (i *inventory) publish(entries []plugin.Entry) (changed bool) {
	var types []string
	var plugins []*musterv1.Plugin
	foreign := map[string]int{}
	for _, e := range entries {
		a := i.asked[e.Name]
		if a.stamp != e.Stamp {
			a = answer{}
		}
		p := &musterv1.Plugin{
			Name: e.Name, Version: cut(a.description.Version, maxVersion), Description: cut(a.description.Description, maxDescription), Contract: plugin.Contract,
		}
		why := e.Err
		if c := a.description.Contract; c > plugin.Contract {
			p.Contract, foreign[e.Name] = uint32(c), c
			why = errors.Join(why, errForeign(e.Name, c))
		}
		if why == nil {
			types = append(types, e.Name)
			why = a.err
		}
		if why != nil {
			p.Error = cut(why.Error(), maxDescription)
		}
		plugins = append(plugins, p)
	}
	slices.Sort(types)
	slices.SortFunc(plugins, func(a, b *musterv1.Plugin) int { return strings.Compare(a.Name, b.Name) })

	i.mu.Lock()
	defer i.mu.Unlock()
	same := slices.Equal(i.types, types) &&
		slices.EqualFunc(i.plugins, plugins, func(a, b *musterv1.Plugin) bool { return proto.Equal(a, b) })
	i.types, i.plugins, i.foreign = types, plugins, foreign
	return !same
}

// names is a list of plugins without what can be left out.
func names(plugins []*musterv1.Plugin) []*musterv1.Plugin {
	var list []*musterv1.Plugin
	for _, p := range plugins {
		list = append(list, &musterv1.Plugin{Name: p.Name, Contract: p.Contract, Error: cut(p.Error, 32)})
	}
	return list
}

// cut makes a line of at most n bytes of a text from outside.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
