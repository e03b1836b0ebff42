package coordinator

import (
	"cmp"
	"slices"
	"strings"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Scopes, from wide to small.
const (
	scopeFleet = iota
	scopeGroup
	scopeAgent
)

// bindings are those of all configs by their scope. They are never changed.
type bindings struct {
	fleet  []boundConfig
	groups map[string][]boundConfig
	agents map[string][]boundConfig
}

// boundConfig is what a binding gives to who is in its scope.
type boundConfig struct {
	name    string
	kind    musterv1.Config_Kind
	version int32
}

// bindings returns those of now.
func (k *catalog) bindings() *bindings {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bound == nil {
		k.bound = newBindings(k.heads)
	}
	return k.bound
}

func newBindings(heads map[string]*configHead) *bindings {
	out := &bindings{groups: map[string][]boundConfig{}, agents: map[string][]boundConfig{}}
	for _, h := range heads {
		for _, b := range h.config.Bindings {
			bc := boundConfig{h.config.Name, h.config.Kind, b.Version}
			switch {
			case b.Fleet:
				out.fleet = append(out.fleet, bc)
			case b.Group != "":
				out.groups[b.Group] = append(out.groups[b.Group], bc)
			default:
				out.agents[b.Agent] = append(out.agents[b.Agent], bc)
			}
		}
	}
	return out
}

// boundTo names the configs that are bound to a group, the first of them.
func (k *catalog) boundTo(group string) (names []string) {
	if group == "" {
		return nil
	}
	for _, name := range k.names() {
		if slices.ContainsFunc(k.head(name).GetBindings(), func(b *musterv1.Binding) bool { return b.Group == group }) {
			names = append(names, name)
		}
		if len(names) == maxNamed {
			break
		}
	}
	return names
}

// effective is the binding that counts of a config for one agent.
type effective struct {
	boundConfig
	scope int
	group string
}

// of returns what an agent in these groups (sorted) has by its bindings: of each
// config the smallest scope counts, among groups the later name. They come in
// the order of merging: the wider scope first, then by group, then by config.
func (b *bindings) of(agent string, groups []string) []effective {
	by := map[string]effective{}
	for _, c := range b.fleet {
		by[c.name] = effective{boundConfig: c}
	}
	for _, g := range groups {
		for _, c := range b.groups[g] {
			by[c.name] = effective{c, scopeGroup, g}
		}
	}
	for _, c := range b.agents[agent] {
		by[c.name] = effective{boundConfig: c, scope: scopeAgent}
	}
	list := make([]effective, 0, len(by))
	for _, e := range by {
		list = append(list, e)
	}
	slices.SortFunc(list, func(x, y effective) int {
		return cmp.Or(cmp.Compare(x.scope, y.scope), strings.Compare(x.group, y.group), strings.Compare(x.name, y.name))
	})
	return list
}

// bindingOf returns which of a config's bindings counts for an agent in these
// groups (sorted): that of the smallest scope, among groups of the later name.
func bindingOf(list []*musterv1.Binding, agent string, groups []string) (found *musterv1.Binding) {
	for _, b := range list {
		holds := b.Fleet || b.Agent != "" && b.Agent == agent
		if b.Group != "" {
			_, holds = slices.BinarySearch(groups, b.Group)
		}
		if holds && (found == nil || compareBindings(found, b) < 0) {
			found = b
		}
	}
	return found
}

// compareBindings puts the wider scope first, then goes by name.
func compareBindings(a, b *musterv1.Binding) int {
	return cmp.Or(cmp.Compare(scopeRank(a), scopeRank(b)), strings.Compare(a.Group, b.Group), strings.Compare(a.Agent, b.Agent))
}

func scopeRank(b *musterv1.Binding) int {
	switch {
	case b.Fleet:
		return scopeFleet
	case b.Group != "":
		return scopeGroup
	default:
		return scopeAgent
	}
}

// asBinding shows an effective binding as operators know it.
func (e effective) asBinding(agent string) *musterv1.Binding {
	b := &musterv1.Binding{Version: e.version}
	switch e.scope {
	case scopeFleet:
		b.Fleet = true
	case scopeGroup:
		b.Group = e.group
	default:
		b.Agent = agent
	}
	return b
}
