package coordinator

import (
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Ended is a command that has ended, with all that is kept of it. It is for
// tools that make a history; a coordinator's own grows row by row.
type Ended struct {
	Command *musterv1.Command  // as REST shows it, with its state, counts and times
	Targets []*musterv1.Target // final, by agent id
	Stdout  [][]byte           // of each target; at most 64 KiB
}

// Ops returns the writes that put it into a store.
func (e *Ended) Ops() []store.Op {
	cmd := proto.CloneOf(e.Command)
	sum := &musterv1.CommandSummary{State: cmd.State, Counts: cmd.Counts, EndTime: cmd.EndTime}
	cmd.State, cmd.Counts, cmd.EndTime = 0, nil, nil
	ops := []store.Op{
		{Space: spaceHistory, Key: cmdKey(cmd.Id), Value: encode(cmd)},
		{Space: spaceHistory, Key: sumKey(cmd.Id), Value: encode(sum)},
	}
	agents := make([]string, len(e.Targets))
	packs, at := packOps(cmd.Id, e.Targets)
	ops = append(ops, packs...)
	for i, t := range e.Targets {
		agents[i] = t.AgentId
		if i < len(e.Stdout) && len(e.Stdout[i]) > 0 {
			ops = append(ops, store.Op{Space: spaceBulk, Key: outKey(cmd.Id, t.AgentId, uint32(musterv1.Stream_STDOUT), 0), Value: e.Stdout[i]})
		}
	}
	ops = append(ops, indexOps(cmd.Id, at)...)
	for n, list := range packed(agents) {
		ops = append(ops, store.Op{Space: spaceBulk, Key: targetsKey(cmd.Id, n), Value: encode(&musterv1.TargetList{AgentIds: list})})
	}
	return ops
}

// KnownAgent returns the write that makes an agent known, for the same tools.
func KnownAgent(a *musterv1.Agent) store.Op { return putAgent(a) }
