package coordinator

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Agents that tell again of several commands in turn cost no reading of target
// lists, but once for each command.
func TestEndedCommandsInTurnAreReadOnce(t *testing.T) {
	scans := 0
	s := faulty.New(store.NewMem(Spaces...), func(c faulty.Call) (f faulty.Fault) {
		if c.Method == faulty.Scan {
			scans++
		}
		return f
	})
	defer s.Close()
	const commands, rounds = 20, 30
	id := func(n int) string { return fmt.Sprintf("01M8NHX3F10HS0QFF2JDMNC8%02d", n) }
	for n := range commands {
		e := Ended{Command: &musterv1.Command{Id: id(n)}, Targets: []*musterv1.Target{{CommandId: id(n), AgentId: "a", State: musterv1.Target_FAILED}}}
		if _, err := s.Commit(t.Context(), store.Batch{Ops: e.Ops()}); err != nil {
			t.Fatal(err)
		}
	}
	c := &Coordinator{store: s, ledger: newLedger(1)}
	for range rounds {
		for n := range commands {
			ts, err := c.finals(t.Context(), id(n), "a")
			if err != nil || ts[0].GetState() != musterv1.Target_FAILED {
				t.Fatalf("got %v, %v", ts, err)
			}
		}
	}
	if scans > 2*commands {
		t.Errorf("%d scans for %d commands", scans, commands)
	}
}

// As many commands to a whole fleet are kept as may be in flight, and never more
// than fit.
func TestEndedCommandsAreBounded(t *testing.T) {
	fleet := make([]string, maxTargets)
	for i := range fleet {
		fleet[i] = fmt.Sprintf("agent-%06d", i)
	}
	var k endedCommands
	keep := func(n int, targets []string) {
		e := &endedCommand{id: fmt.Sprint(n), targets: targets, at: make([]place, len(targets))}
		k.keep(e)
		if k.find(e.id) == nil {
			t.Fatalf("the last of %d is not kept", n+1)
		}
		if bytes := k.bytesLocked(); len(k.kept) > keptCommands || bytes > keptBytes {
			t.Fatalf("after %d: %d commands of %d bytes are kept", n+1, len(k.kept), bytes)
		}
	}
	inFlight := Config{}.withDefaults().InFlight
	for n := range inFlight {
		keep(n, slices.Clone(fleet))
	}
	if len(k.kept) != inFlight {
		t.Errorf("%d commands to all agents are kept, want %d", len(k.kept), inFlight)
	}
	for n := range 20 {
		keep(1000+n, slices.Clone(fleet[n:maxTargets/2]))
	}
	for n := range 2 * keptCommands {
		keep(2000+n, slices.Clone(fleet[n:n+1]))
	}
}

// A damaged index hides no results: they are found in the packs.
func TestTargetsWithABadIndex(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		id := r.submit(to("a")).Id
		a.report(id, musterv1.Target_SUCCEEDED)
		a.leave()
		r.stop()
		_, err := r.store.Commit(context.Background(), store.Batch{Ops: []store.Op{{Space: spaceHistory, Key: indexKey(id, 0), Value: []byte{0xff}}}})
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		r.wantState(id, "a", musterv1.Target_SUCCEEDED)
		a.join()
		defer a.leave()
		a.report(id, musterv1.Target_SUCCEEDED)
		a.wantAcked(id)
	})
}
