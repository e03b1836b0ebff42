package agentd

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order, an id that was settled is known or below the floor.
func TestWindowNeverForgetsSilently(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow(5)
		ids := rapid.SliceOf(rapid.StringMatching(`[a-f]{1,2}`)).Draw(t, "ids")
		for _, id := range ids {
			w.add(id)
		}
		for _, id := range ids {
			if !w.has(id) && !w.below(id) {
				t.Fatalf("%q is forgotten", id)
			}
		}
		if len(w.ids) > 5 || len(w.ids) != len(w.least) {
			t.Fatalf("window of %d, heap of %d", len(w.ids), len(w.least))
		}
		if len(w.least) > 0 && w.floor >= slices.Min(w.least) {
			t.Fatalf("floor %q is above %q", w.floor, slices.Min(w.least))
		}
	})
}
