package coordinator

import (
	"fmt"
	"testing"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
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

func TestEndedCommandsAreBounded(t *testing.T) {
	var k endedCommands
	for n := range 100 {
		e := &endedCommand{id: fmt.Sprint(n), targets: make([]string, 1+n%7*maxTargets/6)}
		k.keep(e)
		k.keep(e)
		total := 0
		for _, e := range k.kept {
			total += e.weight()
		}
		if total != k.total || total > keptWeight {
			t.Fatalf("after %d: %d kept, counted %d, at most %d", n+1, total, k.total, keptWeight)
		}
		if k.find(e.id) == nil {
			t.Fatalf("the last of %d is not kept", n+1)
		}
	}
}
