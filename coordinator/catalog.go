package coordinator

import (
	"maps"
	"slices"
	"sync"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// catalog holds what the store knows of configs: the heads, which versions
// there are, and the names of those that were deleted. Only the follower of the
// store changes it; contents stay in the store.
type catalog struct {
	c *Coordinator

	mu       sync.RWMutex
	heads    map[string]*configHead
	sorted   []string                    // names, nil when it must be made again
	gone     map[string]*musterv1.Config // the last head of a deleted config
	versions map[string]map[int32]string // the path of each version, by config
	bound    *bindings                   // nil when it must be made again
	dirty    bool                        // what agents shall hold may be different
}

// configHead is a config as it is stored; it is never changed, only replaced.
type configHead struct {
	config *musterv1.Config // with etag
	rev    store.Rev
}

func newCatalog(c *Coordinator) *catalog {
	return &catalog{c: c, heads: map[string]*configHead{}, gone: map[string]*musterv1.Config{}, versions: map[string]map[int32]string{}}
}

// hooks follow the rows of configs. Versions come first: a head names them.
// changed is called when what agents shall hold may be different.
func (k *catalog) hooks(changed func()) []configHook {
	done := func() {
		if k.wasChanged() {
			changed()
		}
	}
	return []configHook{
		{prefix: verPrefix, all: k.loadVersions, change: k.changeVersion},
		{prefix: gonePrefix, all: k.loadGone, change: k.changeGone},
		{prefix: cfgPrefix, all: k.loadHeads, change: k.changeHead, done: done},
	}
}

func (k *catalog) wasChanged() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.dirty
	k.dirty = false
	return was
}

func (k *catalog) loadVersions(rows []store.KV) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.versions = map[string]map[int32]string{}
	for _, kv := range rows {
		k.putVersionLocked(kv)
	}
}

func (k *catalog) changeVersion(e store.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !e.Deleted {
		k.putVersionLocked(e.KV)
		return
	}
	if name, n, ok := splitVersion(e.Key, verPrefix); ok {
		delete(k.versions[name], n)
		if len(k.versions[name]) == 0 {
			delete(k.versions, name)
		}
	}
}

func (k *catalog) putVersionLocked(kv store.KV) {
	v := &musterv1.ConfigVersion{}
	if err := decode(kv.Key, kv.Value, v); err != nil {
		k.c.log.Error("version of a config not read; it can be given to nobody", "err", err)
		return
	}
	of := k.versions[v.Config]
	if of == nil {
		of = map[int32]string{}
		k.versions[v.Config] = of
	}
	of[v.Version] = v.GetFile().GetPath()
}

func (k *catalog) loadGone(rows []store.KV) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = map[string]*musterv1.Config{}
	for _, kv := range rows {
		k.putGoneLocked(kv)
	}
}

func (k *catalog) changeGone(e store.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.Deleted {
		name, _ := splitKey(e.Key, gonePrefix)
		delete(k.gone, name)
		return
	}
	k.putGoneLocked(e.KV)
}

func (k *catalog) putGoneLocked(kv store.KV) {
	cfg := &musterv1.Config{}
	if err := decode(kv.Key, kv.Value, cfg); err != nil {
		k.c.log.Error("deleted config not read; agents that hold it keep it", "err", err)
		return
	}
	k.gone[cfg.Name] = cfg
}

func (k *catalog) loadHeads(rows []store.KV) {
	heads := map[string]*configHead{}
	for _, kv := range rows {
		h, err := readHead(kv)
		if err != nil {
			k.c.log.Error("config not read; agents keep what they hold of it", "err", err)
			continue
		}
		heads[h.config.Name] = h
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.heads, k.sorted, k.bound, k.dirty = heads, nil, nil, true
}

func (k *catalog) changeHead(e store.Event) {
	if e.Deleted {
		name, _ := splitKey(e.Key, cfgPrefix)
		if last := k.dropHead(name); last != nil {
			k.c.feed.publish(&musterv1.Event{Kind: "config", Config: last, Deleted: true})
		}
		return
	}
	h, err := readHead(e.KV)
	if err != nil {
		k.c.log.Error("config not read; it stays as it was", "err", err)
		return
	}
	k.putHead(h)
	k.c.feed.publish(&musterv1.Event{Kind: "config", Config: h.config})
}

// dropHead forgets a config, and returns how it was last.
func (k *catalog) dropHead(name string) *musterv1.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.heads[name]
	if h == nil {
		return nil
	}
	delete(k.heads, name)
	k.sorted, k.bound, k.dirty = nil, nil, true
	return h.config
}

func (k *catalog) putHead(h *configHead) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.heads[h.config.Name]
	if k.heads[h.config.Name] = h; old == nil {
		k.sorted = nil
	}
	if old == nil || !sameBindings(old.config.Bindings, h.config.Bindings) {
		k.bound, k.dirty = nil, true
	}
}

func readHead(kv store.KV) (*configHead, error) {
	cfg := &musterv1.Config{}
	if err := decode(kv.Key, kv.Value, cfg); err != nil {
		return nil, err
	}
	cfg.Etag = etagOf(kv.Value)
	return &configHead{config: cfg, rev: kv.Rev}, nil
}

// head returns a config, which must not be changed, or nil.
func (k *catalog) head(name string) *musterv1.Config {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if h := k.heads[name]; h != nil {
		return h.config
	}
	return nil
}

// size is how many configs there are.
func (k *catalog) size() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.heads)
}

// names returns the names of all configs, sorted. The slice is shared.
func (k *catalog) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sorted == nil {
		k.sorted = slices.Sorted(maps.Keys(k.heads))
	}
	return k.sorted
}

// has reports whether a config has a version.
func (k *catalog) has(name string, version int32) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, ok := k.versions[name][version]
	return ok && version > k.gone[name].GetLatestVersion()
}

// versionsOf returns the numbers of a config's versions, oldest first.
func (k *catalog) versionsOf(name string) []int32 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	all := slices.Sorted(maps.Keys(k.versions[name]))
	return slices.DeleteFunc(all, func(n int32) bool { return n <= k.gone[name].GetLatestVersion() })
}

// given reports whether this store has ever given a config of that name and
// kind a version of that number, also before the config was deleted.
func (k *catalog) given(kind musterv1.Config_Kind, name string, version int32) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if h := k.heads[name]; h != nil && h.config.Kind == kind && version > 0 && version <= h.config.LatestVersion {
		return true
	}
	g := k.gone[name]
	return g != nil && g.Kind == kind && version > 0 && version <= g.LatestVersion
}

// lastNumber is the highest number that was ever given to a version of a
// config, also before it was deleted: an agent must be able to tell the versions
// of both lives.
func (k *catalog) lastNumber(name string) (n int32) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if h := k.heads[name]; h != nil {
		n = h.config.LatestVersion
	}
	if g := k.gone[name]; g != nil {
		n = max(n, g.LatestVersion)
	}
	return n
}

// claimant returns the config that has a version at path, other than the one of
// that name; all INSTANCE configs are one claimant.
func (k *catalog) claimant(path, name string, kind musterv1.Config_Kind) (other string) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for n, h := range k.heads {
		if n == name || kind == musterv1.Config_INSTANCE && h.config.Kind == kind {
			continue
		}
		for version, p := range k.versions[n] {
			if pathOf(h.config, p) == path && version > k.gone[n].GetLatestVersion() && (other == "" || n < other) {
				other = n
			}
		}
	}
	return other
}

// pathOf is where a version's file goes: INSTANCE configs are merged into one.
func pathOf(cfg *musterv1.Config, path string) string {
	switch {
	case path != "":
		return path
	case cfg.Kind == musterv1.Config_INSTANCE:
		return instanceName
	default:
		return cfg.Name
	}
}

// stale returns the versions of a config that were left by one of the same name
// which is deleted.
func (k *catalog) stale() (left []configRef) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for name, of := range k.versions {
		for n := range of {
			if n <= k.gone[name].GetLatestVersion() {
				left = append(left, configRef{name, n})
			}
		}
	}
	return left
}

// configRef names a version of a config.
type configRef struct {
	name    string
	version int32
}

// oldestGone returns the name that was deleted first, if limit are remembered.
func (k *catalog) oldestGone(limit int) (oldest string) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if len(k.gone) < limit {
		return ""
	}
	for name, g := range k.gone {
		if oldest == "" || g.UpdateTime.AsTime().Before(k.gone[oldest].UpdateTime.AsTime()) {
			oldest = name
		}
	}
	return oldest
}
