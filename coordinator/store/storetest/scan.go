package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
)

func getAnswersEachKey(t *testing.T, s store.Store) {
	commit(t, s, put(things, "a", "1"), put(things, "c", "3"))
	kvs, err := s.Get(t.Context(), things, []byte("c"), []byte("b"), []byte("a"), []byte("c"))
	must(t, err)
	var got []string
	for _, kv := range kvs {
		got = append(got, fmt.Sprintf("%s=%s %v", kv.Key, kv.Value, kv.Rev != 0))
	}
	if want := []string{"c=3 true", "b= false", "a=1 true", "c=3 true"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	kvs, err = s.Get(t.Context(), things)
	if err != nil || len(kvs) != 0 {
		t.Fatalf("Get of nothing: %v, %v", kvs, err)
	}
}

func scanKeepsOrder(t *testing.T, s store.Store) {
	if p := scan(t, s, things, store.Range{Reverse: true}); len(p.Items) != 0 || p.More {
		t.Fatalf("an empty space: %+v", p)
	}
	keys := []string{"\x00", "\x00\x00", "A", "a", "a\x00", "aa", "b", "b\xff", "b\xff\xff", "\xff", "\xff\xff", "\xff\xff\x00"}
	slices.Sort(keys)
	for i, key := range slices.Backward(keys) {
		commit(t, s, put(things, key, fmt.Sprint(i)))
	}
	for _, prefix := range []string{"", "a", "b", "b\xff", "\xff", "\xff\xff", "c", "\x00"} {
		for _, after := range append([]string{"", "a0", "\x01", "\xff\xff\xff"}, keys...) {
			for _, reverse := range []bool{false, true} {
				var want []string
				for _, key := range keys {
					past := key > after
					if reverse {
						past = key < after
					}
					if strings.HasPrefix(key, prefix) && (past || after == "") {
						want = append(want, key)
					}
				}
				if reverse {
					slices.Reverse(want)
				}
				p := scan(t, s, things, store.Range{Prefix: []byte(prefix), After: []byte(after), Reverse: reverse})
				if got := keysOf(p); !slices.Equal(got, want) || p.More {
					t.Fatalf("prefix %q after %q reverse %v: got %q, want %q", prefix, after, reverse, got, want)
				}
			}
		}
	}
}

func scanPagesBothWays(t *testing.T, s store.Store) {
	const rows = 2500
	var want []string
	for n := 0; n < rows; {
		var ops []store.Op
		for ; n < rows && len(ops) < store.MaxOps; n++ {
			key := fmt.Sprintf("p/%05d", n)
			want = append(want, key)
			ops = append(ops, put(bulk, key, "x"))
		}
		commit(t, s, ops...)
	}
	commit(t, s, put(bulk, "o", "x"), put(bulk, "q", "x"))
	for _, reverse := range []bool{false, true} {
		for _, limit := range []int{7, 500, rows - 1, rows, rows + 1, 0} {
			var got []string
			r := store.Range{Prefix: []byte("p/"), Limit: limit, Reverse: reverse}
			for more := true; more; {
				p := scan(t, s, bulk, r)
				if limit > 0 && len(p.Items) > limit || limit == 0 && len(p.Items) > 1000 {
					t.Fatalf("limit %d: %d rows", limit, len(p.Items))
				}
				got = append(got, keysOf(p)...)
				if more = p.More; more {
					r.After = p.Items[len(p.Items)-1].Key
				}
			}
			if reverse {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("limit %d, reverse %v: %d rows, not the %d wanted", limit, reverse, len(got), rows)
			}
		}
	}
}

func bigPageEndsEarly(t *testing.T, s store.Store) {
	const rows = 2 * store.MaxPage / store.MaxValue
	value := strings.Repeat("v", store.MaxValue)
	for i := range rows {
		commit(t, s, put(bulk, fmt.Sprintf("%03d", i), value))
	}
	p := scan(t, s, bulk, store.Range{})
	if !p.More || len(p.Items) == 0 || len(p.Items) > store.MaxPage/store.MaxValue+1 {
		t.Fatalf("%d big rows in a page, more %v", len(p.Items), p.More)
	}
	last := p.Items[len(p.Items)-1].Key
	if p = scan(t, s, bulk, store.Range{After: last, Limit: 1}); string(p.Items[0].Key) <= string(last) {
		t.Fatalf("page after %q starts with %q", last, p.Items[0].Key)
	}
}

func dropBeforeKeepsTheRest(t *testing.T, s store.Store) {
	const rows = 3000
	for n := 0; n < rows; {
		var ops []store.Op
		for ; n < rows && len(ops) < store.MaxOps; n++ {
			ops = append(ops, put(things, fmt.Sprintf("%05d", n), "x"))
		}
		commit(t, s, ops...)
	}
	commit(t, s, put(bulk, "00000", "x"))
	ch := watch(t, s, things, "", scan(t, s, things, store.Range{}).Rev)
	must(t, s.DropBefore(t.Context(), things, []byte("02500")))
	p := scan(t, s, things, store.Range{})
	if len(p.Items) != rows-2500 || string(p.Items[0].Key) != "02500" {
		t.Fatalf("%d rows from %q", len(p.Items), p.Items[0].Key)
	}
	wantRow(t, s, bulk, "00000", "x")
	must(t, s.DropBefore(t.Context(), things, []byte("00000")))
	must(t, s.DropBefore(t.Context(), things, nil))
	must(t, s.DropBefore(t.Context(), things, []byte("02500\x00")))
	must(t, s.DropBefore(t.Context(), things, []byte("9")))
	if p := scan(t, s, things, store.Range{}); len(p.Items) != 0 {
		t.Fatalf("%d rows are left", len(p.Items))
	}
	commit(t, s, put(things, "new", "1"))
	if got := show(next(t, ch)); got != "new=1" {
		t.Fatalf("watched %q", got)
	}
}
