package coordinator

import (
	"fmt"
	"strings"
	"testing"
)

// An agent whose tags put it into ever new groups is worked out each time. What is
// kept of that has a limit.
func TestSetsOfManyGroupsAreBounded(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.pipeline("app", "one")
		d, b := r.c.configs.desired, r.c.configs.catalog.bindings()
		long := strings.Repeat("n", 100)
		for n := range 2000 {
			r.c.groups.mu.Lock()
			names := make([]string, 1000)
			for i := range names {
				names[i] = fmt.Sprintf("%s-%d-%03d", long, n, i)
			}
			r.c.groups.byAgent["a"] = names
			r.c.groups.mu.Unlock()
			if got := d.boundOf("a").set; len(got.files) != 1 {
				t.Fatalf("got %v", got)
			}
			kept := 0
			for key := range d.base {
				kept += len(key)
			}
			if kept > maxWantBytes+1<<20 {
				t.Fatalf("%d bytes are kept after %d changes", kept, n)
			}
			if d.from != b {
				t.Fatal("the bindings are the same")
			}
		}
	})
}
