package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// arrived returns the Targets of a pack that the watch brings.
func (c *Coordinator) arrived(kv store.KV) ([]*musterv1.Target, error) {
	if ts := c.fresh.release(kv.Key); ts != nil {
		return ts, nil
	}
	n, ts, err := unpack(kv)
	if err != nil {
		return nil, err
	}
	id, _ := splitKey(kv.Key, resPrefix)
	c.learn(id, n, ts)
	return ts, nil
}

// learn notes a pack that was stored unknown to this process's packer.
func (c *Coordinator) learn(id string, pack uint32, ts []*musterv1.Target) {
	if oc := c.ledger.get(id); oc != nil {
		oc.learn(pack, ts, func(int, *musterv1.Target) {})
	}
}

// finals reads the final Targets that a command has of some agents; nil where
// there is none.
func (c *Coordinator) finals(ctx context.Context, id string, agents ...string) ([]*musterv1.Target, error) {
	if oc := c.ledger.get(id); oc != nil {
		return targetsAt(ctx, c.store, id, oc.placesOf(agents))
	}
	e, err := c.ended.get(ctx, c.store, id)
	if err != nil {
		return nil, err
	}
	return targetsAt(ctx, c.store, id, placesIn(e.targets, e.at, agents))
}

// packsAtOnce are read at most at one time.
const packsAtOnce = 32

// targetsAt reads the Targets at places of a command; nil where there is none.
func targetsAt(ctx context.Context, s store.Store, id string, at []place) ([]*musterv1.Target, error) {
	var order []int // of at, those of one pack together
	for i, p := range at {
		if p != 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return int(int64(at[i]) - int64(at[j])) })
	ts := make([]*musterv1.Target, len(at))
	for len(order) > 0 {
		var keys [][]byte
		n, last := 0, uint32(0)
		for ; n < len(order); n++ {
			pack := at[order[n]].pack()
			if len(keys) > 0 && pack == last {
				continue
			}
			if len(keys) == packsAtOnce {
				break
			}
			keys, last = append(keys, packKey(id, pack)), pack
		}
		kvs, err := s.Get(ctx, spaceHistory, keys...)
		if err != nil {
			return nil, err
		}
		for k, i := 0, 0; i < n; i++ {
			p := at[order[i]]
			if i > 0 && p.pack() != at[order[i-1]].pack() {
				k++
			}
			if kvs[k].Rev == 0 {
				continue // it is being stored
			}
			if ts[order[i]], err = targetIn(kvs[k], p.index()); err != nil {
				return nil, err
			}
		}
		order = order[n:]
	}
	return ts, nil
}

// targetIn reads one Target of a pack.
func targetIn(pack store.KV, i int) (*musterv1.Target, error) {
	for b := pack.Value; len(b) > 0; i-- {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 || num != 1 || kind != protowire.BytesType {
			break
		}
		value, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			break
		}
		if i == 0 {
			t := &musterv1.Target{}
			return t, decode(pack.Key, value, t)
		}
		b = b[n+m:]
	}
	return nil, fmt.Errorf("row %q %w: no Target at the place that its command tells", pack.Key, errBadRow)
}

// indexTargets are in one row of an index.
const indexTargets = 16 << 10

// indexOps are the writes of where the Targets of a command are.
func indexOps(id string, at []place) (ops []store.Op) {
	for part := range slices.Chunk(at, indexTargets) {
		row := &musterv1.ResultIndex{Places: make([]uint32, len(part))}
		for i, p := range part {
			row.Places[i] = uint32(p)
		}
		ops = append(ops, store.Op{Kind: store.Put, Space: spaceHistory, Key: indexKey(id, len(ops)), Value: encode(row)})
	}
	return ops
}

// index says where all Targets of a command are that has ended.
func (c *Coordinator) index(ctx context.Context, oc *openCommand) ([]store.Op, error) {
	at, whole := oc.allPlaces()
	if !whole { // a commit that was taken for failed did store them
		if err := oc.learnAll(ctx, c.store, oc.cmd.Id); err != nil {
			return nil, err
		}
		if at, whole = oc.allPlaces(); !whole {
			c.log.Error("a final target has no row", "cmd", oc.cmd.Id)
		}
	}
	return indexOps(oc.cmd.Id, at), nil
}

func (oc *openCommand) allPlaces() (at []place, whole bool) {
	oc.places.mu.Lock()
	defer oc.places.mu.Unlock()
	return slices.Clone(oc.places.at), !slices.Contains(oc.places.at, 0)
}

// endedCommand is where the Targets of an ended command are.
type endedCommand struct {
	id      string
	targets []string
	at      []place
}

func readEnded(ctx context.Context, s store.Store, id string) (*endedCommand, error) {
	targets, err := targetList(ctx, s, id)
	if err != nil {
		return nil, err
	}
	at, err := readIndex(ctx, s, id)
	if errors.Is(err, errBadRow) { // the packs tell the same, if one reads them all
		at, err = placesInPacks(ctx, s, id, targets)
	}
	return &endedCommand{id: id, targets: targets, at: at}, err
}

func readIndex(ctx context.Context, s store.Store, id string) (at []place, err error) {
	err = eachRow(ctx, s, spaceHistory, []byte(indexPrefix+id+"/"), nil, func(kv store.KV) error {
		row := &musterv1.ResultIndex{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			return err
		}
		for _, p := range row.Places {
			at = append(at, place(p))
		}
		return nil
	})
	return at, err
}

func placesInPacks(ctx context.Context, s store.Store, id string, targets []string) ([]place, error) {
	oc := &openCommand{targets: targets, places: places{at: make([]place, len(targets))}}
	err := oc.learnAll(ctx, s, id)
	return oc.places.at, err
}

// learnAll notes where the Targets in all packs of a command are.
func (oc *openCommand) learnAll(ctx context.Context, s store.Store, id string) error {
	return eachPack(ctx, s, id, func(n uint32, ts []*musterv1.Target) error {
		oc.learn(n, ts, func(int, *musterv1.Target) {})
		return nil
	})
}

// endedCommands keeps some that were asked for lately: pages are read one after the
// other, and agents that were away for long tell late of all that they were sent,
// each of them of the same commands in turn. The zero value is ready to use.
type endedCommands struct {
	mu   sync.Mutex
	kept map[string]*endedCommand
}

// What is kept at most: four times the commands that may be in flight, and of a
// fleet of 100,000 agents as many as that.
const (
	keptCommands = 256
	keptBytes    = 32 << 20
)

// get may block for the store. Nobody may write to what it returns.
func (k *endedCommands) get(ctx context.Context, s store.Store, id string) (*endedCommand, error) {
	if e := k.find(id); e != nil {
		return e, nil
	}
	e, err := readEnded(ctx, s, id)
	if err == nil && len(e.at) > 0 && len(e.at) == len(e.targets) { // else it has not ended, or is being removed
		k.keep(e)
	}
	return e, err
}

func (k *endedCommands) find(id string) *endedCommand {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[id]
}

// keep makes room by letting any other go: if it were the oldest, none of those
// asked for in turn would be found again when there is one too many. Commands to
// the same agents share their list.
func (k *endedCommands) keep(e *endedCommand) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept = map[string]*endedCommand{}
	}
	for _, other := range k.kept {
		if slices.Equal(other.targets, e.targets) {
			e.targets = other.targets
			break
		}
	}
	k.kept[e.id] = e
	for id := range k.kept {
		if len(k.kept) <= keptCommands && k.bytesLocked() <= keptBytes {
			break
		}
		if id != e.id {
			delete(k.kept, id)
		}
	}
}

// bytesLocked is about what they take.
func (k *endedCommands) bytesLocked() (n int) {
	lists := map[*string]struct{}{}
	for _, e := range k.kept {
		n += 4 * len(e.at)
		list := &e.targets[0]
		if _, counted := lists[list]; !counted {
			lists[list] = struct{}{}
			n += 48 * len(e.targets) // an id, and where it is
		}
	}
	return n
}
