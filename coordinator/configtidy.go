package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster/coordinator/store"
)

// tidyEvery is the pace of looking for versions to remove without being asked,
// as those whose binding has gone.
const tidyEvery = time.Hour

// tidySoon asks for a round of tidyLoop. It never blocks.
func (k *configs) tidySoon() {
	select {
	case k.untidy <- struct{}{}:
	default:
	}
}

// tidyLoop removes versions that are kept no longer: those of a deleted config,
// those that are too old, and content whose version was never stored.
func (k *configs) tidyLoop(ctx context.Context) error {
	t := time.NewTicker(tidyEvery)
	defer t.Stop()
	k.tidySoon()
	for {
		select {
		case <-k.untidy:
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if err := k.tidy(ctx); err != nil && ctx.Err() == nil {
			k.c.log.Error("old versions of configs not removed", "err", err)
			pause(ctx, time.Minute)
			k.tidySoon()
		}
	}
}

func (k *configs) tidy(ctx context.Context) error {
	if err := k.tidyStaged(ctx); err != nil {
		return err
	}
	for _, ref := range k.catalog.stale() {
		if err := k.removeVersion(ctx, ref, nil); err != nil {
			return err
		}
	}
	for _, name := range k.catalog.names() {
		for _, n := range k.old(name) {
			if err := k.removeVersion(ctx, configRef{name, n}, k.unwanted); err != nil {
				return err
			}
		}
	}
	return nil
}

// tidyStaged removes content of versions that were never stored.
func (k *configs) tidyStaged(ctx context.Context) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	return k.c.each(ctx, spaceConfig, stagedPrefix, func(kv store.KV) error {
		name, n, ok := splitVersion(kv.Key, stagedPrefix)
		if !ok {
			return nil
		}
		return k.clearStaged(ctx, configRef{name, n})
	})
}

// old returns the versions of a config that are not among its newest.
func (k *configs) old(name string) []int32 {
	all := k.catalog.versionsOf(name)
	return all[:max(0, len(all)-keptVersions)]
}

// unwanted reports whether a version is neither bound nor in a rollout.
func (k *configs) unwanted(ref configRef) bool {
	head := k.catalog.head(ref.name)
	if head == nil {
		return true
	}
	for _, b := range head.Bindings {
		if b.Version == ref.version {
			return false
		}
	}
	return !k.rollouts.needs(ref.name, ref.version)
}

// removeVersion deletes a version if a last look says so; nil asks nothing. A
// request that would bind to it is either before or after.
func (k *configs) removeVersion(ctx context.Context, ref configRef, last func(configRef) bool) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	if last != nil && (!slices.Contains(k.old(ref.name), ref.version) || !last(ref)) {
		return nil
	}
	return k.remove(ctx, ref, store.Op{Kind: store.Delete, Space: spaceConfig, Key: verKey(ref.name, ref.version)})
}
