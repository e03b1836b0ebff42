package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// applyPlan is what differs between a folder and the server.
type applyPlan struct {
	Groups  []*groupPlan  `json:"groups"`
	Configs []*configPlan `json:"configs"`
	// What the server has and the folder does not name; it is left alone.
	OtherGroups  []string `json:"other_groups"`
	OtherConfigs []string `json:"other_configs"`
}

// groupPlan is what is to be done for one group.
type groupPlan struct {
	Name    string `json:"name"`
	Change  change `json:"change"`
	Total   int    `json:"total"` // members then
	Fleet   int    `json:"fleet"`
	Joining int    `json:"joining"`
	Leaving int    `json:"leaving"`

	want    groupBody
	have    agentGroup
	members []string // then, if it changes
	leavers []string // the first of them
	notes   []string
}

// change says what becomes of a group or a config.
type change string

const (
	unchanged change = "NONE"
	added     change = "NEW"
	changed   change = "CHANGED"
)

// configPlan is what is to be done for one config: a new version unless there is
// one, then bindings, then a rollout to those who have another.
type configPlan struct {
	Name        string          `json:"name"`
	Change      change          `json:"change"`
	Version     int             `json:"version"` // 0: it is to be made
	From        int             `json:"from"`    // the version that is bound now, the highest; 0: none
	Bindings    []binding       `json:"bindings"`
	FileChanges []string        `json:"file_changes,omitempty"`
	Diff        string          `json:"diff,omitempty"`
	Effect      string          `json:"effect"`           // on whom
	Losing      []string        `json:"losing,omitempty"` // agents that will have none
	Rollout     json.RawMessage `json:"rollout,omitempty"`

	want     configFile
	have     *config // nil: there is none
	putHead  bool    // description or bindings
	rollOut  bool
	affected int // agents at most
	fleet    int
}

// head is the config without its bindings.
func (c *configPlan) head() configBody {
	return configBody{Name: c.Name, Kind: c.want.Kind, Description: c.want.Description}
}

// rollout is the one that brings a version.
func (c *configPlan) rollout(version int) rolloutBody {
	return rolloutBody{Version: version, Plan: c.want.Rollout, KeepOnHalt: c.want.KeepOnHalt, Note: c.want.Note}
}

// planner asks the server what there is.
type planner struct {
	client *client
	diff   bool // contents are compared line by line
	fleet  int
}

func (p *planner) plan(ctx context.Context, f folder) (*applyPlan, error) {
	all := &applyPlan{OtherGroups: []string{}, OtherConfigs: []string{}}
	groups, err := byName(ctx, p.client, "groups", func(g agentGroup) string { return g.Name })
	if err != nil {
		return nil, err
	}
	configs, err := byName(ctx, p.client, "configs", func(c config) string { return c.Name })
	if err != nil {
		return nil, err
	}
	if p.fleet, err = p.client.fleetSize(ctx); err != nil {
		return nil, err
	}
	named := map[string]*groupPlan{}
	for _, want := range f.groups {
		g, err := p.planGroup(ctx, want, groups)
		if err != nil {
			return nil, fmt.Errorf("group %q: %w", want.Name, err)
		}
		all.Groups, named[want.Name] = append(all.Groups, g), g
		delete(groups, want.Name)
	}
	all.OtherGroups = slices.AppendSeq(all.OtherGroups, maps.Keys(groups))
	slices.Sort(all.OtherGroups)
	for _, want := range f.configs {
		for _, b := range want.Bindings.at(0) {
			name := b.Group
			if name == "" {
				continue
			}
			if _, known := groups[name]; !known && named[name] == nil {
				return nil, fmt.Errorf("config %q is bound to group %q, which neither the folder nor the server has", want.name, name)
			}
		}
		c, err := p.planConfig(ctx, want, configs, named)
		if err != nil {
			return nil, fmt.Errorf("config %q: %w", want.name, err)
		}
		all.Configs = append(all.Configs, c)
		delete(configs, want.name)
	}
	all.OtherConfigs = slices.AppendSeq(all.OtherConfigs, maps.Keys(configs))
	slices.Sort(all.OtherConfigs)
	return all, nil
}

// byName lists all of a collection.
func byName[T any](ctx context.Context, cl *client, collection string, name func(T) string) (map[string]T, error) {
	rows, err := rowsOf[T](ctx, cl, "/v1/"+collection, collection, 0)
	all := map[string]T{}
	for _, row := range rows {
		all[name(row)] = row
	}
	return all, err
}

func (p *planner) planGroup(ctx context.Context, want groupBody, groups map[string]agentGroup) (*groupPlan, error) {
	have, known := groups[want.Name]
	g := &groupPlan{Name: want.Name, Change: changed, want: want, have: have}
	switch {
	case !known:
		g.Change = added
	case want.Where == have.Where && want.Description == have.Description && slices.Equal(want.Agents, have.Agents):
		g.Change, g.Total, g.Fleet = unchanged, have.Size, p.fleet
		return g, nil
	}
	preview, err := p.client.previewGroup(ctx, want)
	g.Total, g.Fleet, g.Joining, g.Leaving, g.members = preview.Total, preview.Fleet, len(preview.Joining), preview.Leaving, preview.AgentIDs
	g.leavers, g.notes = preview.LeavingIDs, preview.notes(want)
	return g, err
}

func (p *planner) planConfig(ctx context.Context, want configFile, configs map[string]config, groups map[string]*groupPlan) (*configPlan, error) {
	c := &configPlan{Name: want.name, Change: changed, want: want}
	if have, known := configs[want.name]; !known {
		c.Change, c.putHead = added, true
	} else if have.Kind != want.Kind {
		return nil, fmt.Errorf("it is %s, and stays so; the folder says %s", have.Kind, want.Kind)
	} else {
		c.have = &have
		if err := p.findVersion(ctx, c); err != nil {
			return nil, err
		}
	}
	c.bind()
	if c.Version > 0 && !c.putHead && !c.rollOut {
		c.Change = unchanged
		return c, nil
	}
	return c, p.preview(ctx, c, groups)
}

// bind says what the bindings are once they are put. Where some version is bound
// already, a new scope gets that one first, and the new version by the rollout.
func (c *configPlan) bind() {
	first := cmp.Or(c.From, c.Version)
	var have []binding
	if c.have != nil {
		have = c.have.Bindings
		c.putHead = c.have.Description != c.want.Description
	}
	for _, b := range c.scopes().at(0) {
		i := slices.IndexFunc(have, func(h binding) bool { return h.scope() == b })
		if b.Version = first; i >= 0 {
			b.Version = have[i].Version
		} else {
			c.putHead = true
		}
		c.Bindings = append(c.Bindings, b)
		if c.From > 0 && (c.Version == 0 || b.Version != c.Version) {
			c.rollOut = true
		}
	}
	if len(have) != len(c.Bindings) {
		c.putHead = true
	}
}

// scopes are what the folder says, or what there are when it does not say.
func (c *configPlan) scopes() *scopes {
	switch {
	case c.want.Bindings != nil:
		return c.want.Bindings
	case c.have != nil:
		return scopesIn(c.have.Bindings)
	}
	return &scopes{}
}

// maxBindings is what the server takes of one config.
const maxBindings = 1000

// preview asks who would get what at the end.
func (p *planner) preview(ctx context.Context, c *configPlan, groups map[string]*groupPlan) error {
	to := c.Version
	if to == 0 {
		to = 1
		if c.have != nil {
			to = c.have.LatestVersion + 1
		}
	}
	scopes, missed := foreseen(c.scopes(), groups)
	preview, err := p.client.previewConfig(ctx, configBody{Name: c.Name, Bindings: scopes.at(to)})
	if hasCode(err, "ROLLOUT_IN_PROGRESS") && c.rollOut {
		return p.previewRollout(ctx, c) // bindings are held meanwhile; another rollout is not
	}
	if err != nil {
		return err
	}
	c.fleet = preview.Fleet
	c.affected = min(preview.Changed+missed, preview.Fleet)
	c.Effect = changeWords(preview)
	for _, ch := range preview.Changes {
		if ch.ToVersion == 0 {
			c.Losing = append(c.Losing, ch.AgentID)
		}
	}
	if missed > 0 {
		c.Effect += fmt.Sprintf(", and at most %d by the change of groups", missed)
	}
	return nil
}

// previewRollout asks whom the rollout concerns.
func (p *planner) previewRollout(ctx context.Context, c *configPlan) error {
	_, r, err := p.client.startRollout(ctx, c.Name, c.rollout(cmp.Or(c.Version, c.From)), true)
	if err != nil {
		return err
	}
	c.affected, c.fleet = r.Counts.Total, p.fleet
	c.Effect = fmt.Sprintf("%d of %d agents, rollout %s is in progress", c.affected, c.fleet, c.have.RolloutID)
	return nil
}

// foreseen names the agents of groups that are not there yet, or will change:
// the server knows the groups of now. Where they are too many for that, missed
// says how many at most are not among them.
func foreseen(s *scopes, groups map[string]*groupPlan) (as *scopes, missed int) {
	as = &scopes{Fleet: s.Fleet, Agents: slices.Clone(s.Agents)}
	for _, name := range s.Groups {
		g := groups[name]
		switch {
		case g == nil || g.Change == unchanged:
			as.Groups = append(as.Groups, name)
		case len(s.Groups)+len(as.Agents)+len(g.members) < maxBindings:
			as.Agents = append(as.Agents, g.members...)
		case g.Change == changed:
			as.Groups = append(as.Groups, name)
			missed += g.Joining
		default:
			missed += g.Joining
		}
	}
	slices.Sort(as.Agents)
	as.Agents = slices.Compact(as.Agents)
	return as, missed
}
