package storetest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster/coordinator/store"
)

// behavesLikeTheModel does random calls on a store and on plain maps.
func behavesLikeTheModel(t *testing.T, open Opener) {
	rapid.Check(t, func(r *rapid.T) {
		s := open.fresh(t)
		defer s.Close()
		m := &model{t: t, s: s, rows: map[store.Space]map[string]store.KV{things: {}, bulk: {}}}
		m.ch = watch(t, s, things, "", 0)
		r.Repeat(map[string]func(*rapid.T){
			"commit": m.commit,
			"get":    m.get,
			"scan":   m.scan,
			"drop":   m.drop,
		})
	})
}

type model struct {
	t    *testing.T
	s    store.Store
	ch   <-chan []store.Event
	rows map[store.Space]map[string]store.KV
}

var (
	someSpace = rapid.SampledFrom([]store.Space{things, bulk})
	someKey   = rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', 0, 'ÿ'}), 1, 3, store.MaxKey)
)

func (m *model) commit(r *rapid.T) {
	var ops []store.Op
	for _, key := range rapid.SliceOfNDistinct(someKey, 0, 8, rapid.ID).Draw(r, "keys") {
		op := store.Op{
			Kind:  rapid.SampledFrom([]store.Kind{store.Put, store.PutIfAbsent, store.Delete}).Draw(r, "kind"),
			Space: someSpace.Draw(r, "space"),
			Key:   []byte(key),
			Value: []byte(rapid.StringN(0, 5, 20).Draw(r, "value")),
		}
		now := m.rows[op.Space][key].Rev
		switch rapid.IntRange(0, 9).Draw(r, "cond") {
		case 0:
			op.If = store.Absent()
		case 1:
			op.If = store.AtRev(store.Rev(rapid.IntRange(0, 20).Draw(r, "rev")))
		case 2, 3:
			op.If = store.AtRev(now)
		}
		ops = append(ops, op)
	}
	conflict, skipped, events := m.expect(ops)
	res, err := m.s.Commit(m.t.Context(), store.Batch{Ops: ops})
	if conflict {
		wantErr(m.t, err, store.ErrConflict)
		return
	}
	must(m.t, err)
	if !slices.Equal(res.Skipped, skipped) {
		r.Fatalf("skipped %v, want %v", res.Skipped, skipped)
	}
	if (res.Rev != 0) != (len(events) > 0) {
		r.Fatalf("revision %d with %d watched changes", res.Rev, len(events))
	}
	if len(events) > 0 {
		if got, want := show(next(m.t, m.ch)), strings.Join(events, " "); got != want {
			r.Fatalf("watched %q, want %q", got, want)
		}
	}
	for i, op := range ops {
		if slices.Contains(skipped, i) {
			continue
		}
		if op.Kind == store.Delete {
			delete(m.rows[op.Space], string(op.Key))
			continue
		}
		kv := get(m.t, m.s, op.Space, string(op.Key)) // the model does not know the revision
		if old := m.rows[op.Space][string(op.Key)].Rev; kv.Rev <= old {
			r.Fatalf("key %q: revision %d after %d", op.Key, kv.Rev, old)
		}
		m.rows[op.Space][string(op.Key)] = store.KV{Key: op.Key, Value: op.Value, Rev: kv.Rev}
	}
}

// expect says what the ops will do.
func (m *model) expect(ops []store.Op) (conflict bool, skipped []int, events []string) {
	told := map[string]string{}
	for i, op := range ops {
		now := m.rows[op.Space][string(op.Key)].Rev
		if op.Kind == store.PutIfAbsent {
			if now != 0 {
				skipped = append(skipped, i)
				continue
			}
		} else if !op.If.Holds(now) {
			conflict = true
		}
		if op.Space != things || op.Kind == store.Delete && now == 0 {
			continue
		}
		told[string(op.Key)] = show([]store.Event{{KV: store.KV{Key: op.Key, Value: op.Value}, Deleted: op.Kind == store.Delete}})
	}
	for _, key := range slices.Sorted(maps.Keys(told)) {
		events = append(events, told[key])
	}
	return conflict, skipped, events
}

func (m *model) get(r *rapid.T) {
	space, key := someSpace.Draw(r, "space"), someKey.Draw(r, "key")
	got, want := get(m.t, m.s, space, key), m.rows[space][key]
	if got.Rev != want.Rev || string(got.Value) != string(want.Value) {
		r.Fatalf("key %q: got %v, want %v", key, got, want)
	}
}

func (m *model) scan(r *rapid.T) {
	space := someSpace.Draw(r, "space")
	q := store.Range{
		Prefix:  []byte(rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'ÿ'}), 0, 2, 10).Draw(r, "prefix")),
		After:   []byte(rapid.OneOf(rapid.Just(""), someKey).Draw(r, "after")),
		Limit:   rapid.IntRange(0, 4).Draw(r, "limit"),
		Reverse: rapid.Bool().Draw(r, "reverse"),
	}
	want := []string{}
	for key := range m.rows[space] {
		past := key > string(q.After) != q.Reverse && key != string(q.After)
		if strings.HasPrefix(key, string(q.Prefix)) && (past || len(q.After) == 0) {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	if q.Reverse {
		slices.Reverse(want)
	}
	more := q.Limit > 0 && len(want) > q.Limit
	if more {
		want = want[:q.Limit]
	}
	p := scan(m.t, m.s, space, q)
	if got := keysOf(p); !slices.Equal(got, want) || p.More != more {
		r.Fatalf("%+v: got %q more %v, want %q more %v", q, got, p.More, want, more)
	}
	for _, kv := range p.Items {
		if want := m.rows[space][string(kv.Key)]; kv.Rev != want.Rev || string(kv.Value) != string(want.Value) {
			r.Fatalf("key %q: got %v, want %v", kv.Key, kv, want)
		}
	}
}

func (m *model) drop(r *rapid.T) {
	space, below := someSpace.Draw(r, "space"), someKey.Draw(r, "below")
	must(m.t, m.s.DropBefore(m.t.Context(), space, []byte(below)))
	maps.DeleteFunc(m.rows[space], func(key string, _ store.KV) bool { return key < below })
}
