package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Final Targets are stored in packs: rows of those of one command that a commit
// brought. A row each would cost a commit several times as much.
const (
	packTargets = 64
	packBytes   = 32 << 10 // a pack that has so many takes no more: one Target of it must be cheap to read
)

// place says where a final Target is: 1 + number of the pack * packTargets + place
// in it; 0 is nowhere.
type place uint32

func placeIn(pack uint32, i int) place { return place(1 + pack*packTargets + uint32(i)) }
func (p place) pack() uint32           { return uint32(p-1) / packTargets }
func (p place) index() int             { return int(p-1) % packTargets }

// places of an open command's final Targets. A target has one from before the
// commit that stores it, which keeps out a second Target. Its methods may be
// called concurrently.
type places struct {
	mu   sync.Mutex
	at   []place
	next uint32 // number of the next pack
}

// take gives pack's place i to a target, unless it has one.
func (p *places) take(target int, at place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at[target] != 0 {
		return false
	}
	p.at[target] = at
	return true
}

// pass keeps the number of a pack that the store has from being given again.
func (p *places) pass(pack uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = max(p.next, pack+1)
}

// free takes back places of targets that were not stored.
func (p *places) free(targets []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range targets {
		p.at[i] = 0
	}
}

func (p *places) nextPack() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return p.next - 1
}

// placesOf returns where the Targets of these agents are; one that is no target has
// none.
func (oc *openCommand) placesOf(agents []string) []place {
	oc.places.mu.Lock()
	defer oc.places.mu.Unlock()
	return placesIn(oc.targets, oc.places.at, agents)
}

func placesIn(targets []string, at []place, agents []string) []place {
	found := make([]place, len(agents))
	for n, agent := range agents {
		if i, ok := slices.BinarySearch(targets, agent); ok && i < len(at) {
			found[n] = at[i]
		}
	}
	return found
}

// learn notes the Targets of a pack that the store has, and calls first for each
// that is the first of its target.
func (oc *openCommand) learn(pack uint32, ts []*musterv1.Target, first func(target int, t *musterv1.Target)) {
	oc.places.pass(pack)
	for i, t := range ts {
		if target, ok := slices.BinarySearch(oc.targets, t.AgentId); ok && oc.places.take(target, placeIn(pack, i)) {
			first(target, t)
		}
	}
}

// result is a final Target that is to be stored.
type result struct {
	target *musterv1.Target
	value  []byte // encoded
}

// hasRoom reports whether a pack of so many Targets and bytes takes one more.
func hasRoom(targets, bytes, more int) bool {
	return targets < packTargets && bytes < packBytes && bytes+more+resultOverhead <= store.MaxValue
}

// resultOverhead is what a result takes in a row and is not its value, at most
// when it is alone there.
const resultOverhead = 64

func resultOf(t *musterv1.Target) result { return result{t, encode(t)} }

func (r result) key() rowKey {
	return rowKey{spaceHistory, r.target.CommandId, r.target.AgentId}
}

// packer commits rows, and results in packs. One commit at a time.
type packer struct {
	store  store.Store
	ledger *ledger
	fresh  *freshPacks
	log    *slog.Logger
}

// commit is the store's Commit, and says of each op and of each result whether it
// was skipped. The first result of a target wins; others are skipped, as are those
// of commands that have ended.
func (p *packer) commit(ctx context.Context, ops []store.Op, results []result) (skippedOps, skippedResults []bool, err error) {
	skippedOps, skippedResults = make([]bool, len(ops)), make([]bool, len(results))
	w := &packing{packer: p, open: map[string]*pack{}}
	for i, r := range results {
		skippedResults[i] = !w.add(r)
	}
	for _, k := range w.packs {
		if len(k.of) > 0 {
			ops = append(ops, k.op())
			p.fresh.keep(k.key(), k.targets)
		}
	}
	if len(ops) == 0 {
		return skippedOps, skippedResults, nil
	}
	res, err := p.store.Commit(ctx, store.Batch{Ops: ops})
	if err != nil {
		w.undo(ctx, err)
	}
	for _, i := range res.Skipped {
		skippedOps[i] = true
	}
	return skippedOps, skippedResults, err
}

// packing is results being turned into packs.
type packing struct {
	*packer
	packs []*pack
	open  map[string]*pack // those that take more, by command
}

// undo takes back the places of what was not stored.
func (w *packing) undo(ctx context.Context, err error) {
	if errors.Is(err, store.ErrUnknown) && w.stored(ctx) {
		return
	}
	for _, k := range w.packs {
		k.oc.places.free(k.of)
		w.fresh.release(k.key())
	}
}

// stored looks whether the packs, which are stored all or none, are there. It
// looks until it knows or ctx ends: with its place given back, a result that is
// stored would not keep out a second one.
func (w *packing) stored(ctx context.Context) bool {
	i := slices.IndexFunc(w.packs, func(k *pack) bool { return len(k.of) > 0 })
	if i < 0 {
		return false
	}
	for ctx.Err() == nil {
		kvs, err := w.store.Get(ctx, spaceHistory, w.packs[i].key())
		if err == nil {
			return kvs[0].Rev != 0
		}
		w.log.Error("cannot read whether results were stored, trying again", "err", err)
		pause(ctx, time.Second)
	}
	return false
}

// pack is a row of results being filled.
type pack struct {
	oc      *openCommand
	number  uint32
	values  [][]byte // encoded
	size    int      // of the row, at most
	of      []int    // targets, by their index
	targets []*musterv1.Target
}

// add takes a result if it is the first of a target.
func (w *packing) add(r result) bool {
	k := w.packFor(r.target.CommandId, len(r.value))
	return k != nil && k.add(r)
}

// packFor returns a pack of an open command that has room for a Target of so many
// bytes, or nil.
func (w *packing) packFor(id string, size int) *pack {
	k := w.open[id]
	if k != nil && hasRoom(len(k.of), k.size, size) {
		return k
	}
	var oc *openCommand
	if k != nil {
		oc = k.oc
	} else if oc = w.ledger.get(id); oc == nil {
		return nil
	}
	k = &pack{oc: oc, number: oc.places.nextPack()}
	w.open[id], w.packs = k, append(w.packs, k)
	return k
}

func (k *pack) add(r result) bool {
	i, ok := slices.BinarySearch(k.oc.targets, r.target.AgentId)
	if !ok || !k.oc.places.take(i, placeIn(k.number, len(k.of))) {
		return false
	}
	k.values = append(k.values, r.value)
	k.size += len(r.value) + targetOverhead
	k.of, k.targets = append(k.of, i), append(k.targets, r.target)
	return true
}

func (k *pack) key() []byte { return packKey(k.oc.cmd.Id, k.number) }

func (k *pack) op() store.Op {
	row := make([]byte, 0, k.size)
	for _, value := range k.values {
		row = appendTarget(row, value)
	}
	return store.Op{Kind: store.Put, Space: spaceHistory, Key: k.key(), Value: row}
}

// appendTarget adds an encoded Target to an encoded ResultPack.
func appendTarget(pack, t []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(pack, 1, protowire.BytesType), t)
}

// targetOverhead is what a Target takes in a pack besides itself, at most.
const targetOverhead = 6

// packOps are the writes of final Targets of a command that is not open yet, and
// where they go.
func packOps(id string, ts []*musterv1.Target) (ops []store.Op, at []place) {
	targets := 0 // of the last pack
	for _, t := range ts {
		value := encode(t)
		if len(ops) == 0 || !hasRoom(targets, len(ops[len(ops)-1].Value), len(value)) {
			ops = append(ops, store.Op{Kind: store.PutIfAbsent, Space: spaceHistory, Key: packKey(id, uint32(len(ops)))})
			targets = 0
		}
		last := &ops[len(ops)-1]
		last.Value = appendTarget(last.Value, value)
		at = append(at, placeIn(uint32(len(ops)-1), targets))
		targets++
	}
	return ops, at
}

// eachPack calls fn for every pack of a command, in their order.
func eachPack(ctx context.Context, s store.Store, id string, fn func(pack uint32, ts []*musterv1.Target) error) error {
	return eachRow(ctx, s, spaceHistory, []byte(resPrefix+id+"/"), nil, func(kv store.KV) error {
		n, ts, err := unpack(kv)
		if err != nil {
			return err
		}
		return fn(n, ts)
	})
}

func unpack(kv store.KV) (pack uint32, ts []*musterv1.Target, err error) {
	row := &musterv1.ResultPack{}
	if err := decode(kv.Key, kv.Value, row); err != nil {
		return 0, nil, err
	}
	_, hex := splitKey(kv.Key, resPrefix)
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || len(row.Targets) > packTargets {
		return 0, nil, fmt.Errorf("row %q %w: it is no pack", kv.Key, errBadRow)
	}
	return uint32(n), row.Targets, nil
}
