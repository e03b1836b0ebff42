package coordinator

import (
	"slices"
	"strings"
	"sync"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// maxWantSets bounds what is kept of the sets that were worked out: each agent of
// a large fleet may have one of its own.
const (
	maxWantSets  = 1 << 17
	maxWantBytes = 64 << 20 // of their keys: an agent in many groups that come and go has long ones
)

// wantSet is what an agent shall hold. Agents that shall hold the same share it;
// it is never changed.
type wantSet struct {
	key     string
	files   []configRef // PIPELINE, by name
	sources []effective // INSTANCE, the widest scope first
	doc     int32       // version of the document merged of sources; 0: none
}

var emptyWant = &wantSet{}

// version returns the version that is wanted of what has this name on the wire;
// 0: none.
func (w *wantSet) version(kind musterv1.Config_Kind, name string) int32 {
	if kind == musterv1.Config_INSTANCE {
		if name == instanceName {
			return w.doc
		}
		return 0
	}
	i, ok := slices.BinarySearchFunc(w.files, name, func(r configRef, name string) int { return strings.Compare(r.name, name) })
	if !ok {
		return 0
	}
	return w.files[i].version
}

// source returns the version of an INSTANCE config that the document is to be
// merged of; 0: none.
func (w *wantSet) source(name string) int32 {
	for _, e := range w.sources {
		if e.name == name {
			return e.version
		}
	}
	return 0
}

// desired works out what agents shall hold, from the bindings, their groups and
// the rollouts in progress. It is asked when one of these has changed, never
// when an agent beats. It may be used concurrently.
type desired struct {
	k       *configs
	numbers *docNumbers

	mu   sync.Mutex
	from *bindings            // what follows was worked out of
	base map[string]*boundSet // by groups
	sets map[string]*wantSet  // by key
	size int                  // bytes of the keys of both
}

// boundSet is what the agents of the same groups have by their bindings.
type boundSet struct {
	list []effective
	set  *wantSet
}

func newDesired(k *configs) *desired {
	return &desired{k: k, numbers: newDocNumbers()}
}

// of returns what an agent shall hold now.
func (d *desired) of(agent string) *wantSet {
	bound := d.boundOf(agent)
	list, changed := bound.list, false
	for i, e := range bound.list {
		v := d.k.rollouts.version(agent, e.name, e.version)
		if v == e.version {
			continue
		}
		if !changed {
			list, changed = slices.Clone(list), true
		}
		list[i].version = v
	}
	if !changed {
		return bound.set
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.setLocked(slices.DeleteFunc(list, func(e effective) bool { return e.version == 0 }))
}

// boundOf returns what an agent has by its bindings.
func (d *desired) boundOf(agent string) *boundSet {
	groups := d.k.c.groups.of(agent)
	b := d.k.catalog.bindings()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.from != b || len(d.sets) > maxWantSets || len(d.base) > maxWantSets || d.size > maxWantBytes {
		d.from, d.base, d.sets, d.size = b, map[string]*boundSet{}, map[string]*wantSet{}, 0
	}
	return d.boundLocked(b, agent, groups)
}

func (d *desired) boundLocked(b *bindings, agent string, groups []string) *boundSet {
	if len(b.agents[agent]) > 0 { // it has a set of its own
		list := b.of(agent, groups)
		return &boundSet{list, d.setLocked(list)}
	}
	key := strings.Join(groups, "/")
	s := d.base[key]
	if s == nil {
		list := b.of("", groups)
		s = &boundSet{list, d.setLocked(list)}
		d.base[key] = s
		d.size += len(key)
	}
	return s
}

// setLocked makes the set of a list, or returns the one that there is.
func (d *desired) setLocked(list []effective) *wantSet {
	if len(list) == 0 {
		return emptyWant
	}
	w := &wantSet{}
	var sources []configRef
	for _, e := range list {
		ref := configRef{e.name, e.version}
		if e.kind == musterv1.Config_INSTANCE {
			w.sources = append(w.sources, e)
			sources = append(sources, ref)
		} else {
			w.files = append(w.files, ref)
		}
	}
	slices.SortFunc(w.files, func(x, y configRef) int { return strings.Compare(x.name, y.name) })
	w.key = refsKey(w.files) + "/" + refsKey(sources)
	if s := d.sets[w.key]; s != nil && slices.Equal(s.sources, w.sources) {
		return s
	}
	w.doc = d.numbers.of(sources)
	if d.sets[w.key] == nil {
		d.size += len(w.key)
	}
	d.sets[w.key] = w
	return w
}

// sourceRefs names what the document is merged of.
func (w *wantSet) sourceRefs() []configRef {
	refs := make([]configRef, len(w.sources))
	for i, e := range w.sources {
		refs[i] = configRef{e.name, e.version}
	}
	return refs
}
