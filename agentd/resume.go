package agentd

import (
	"fmt"
	"time"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const leftoverWait = 5 * time.Second

// resume takes up what an earlier agent left: what had not begun is queued
// again, what ran is ended and told to be INTERRUPTED, what ended is told
// again. Nothing is started before.
func (a *Agent) resume() {
	for _, h := range a.ledger.inOrder(func(*held) bool { return true }) {
		switch {
		case h.final != nil:
			a.outbox.tell(h.final)
		case h.state == musterv1.Target_RUNNING:
			a.resumeRunning(h)
		case h.command == nil, a.damage != "" && !h.command.Idempotent:
			left := plugin.KillMarked("MUSTER_COMMAND_ID="+h.id, "MUSTER_AGENT_ID="+a.id)
			a.log.Warn("command may have run", "cmd", h.id, "killed", left)
			a.interrupted(h, "the agent's journal was damaged: it may have run")
		default:
			a.requeue(h)
		}
	}
	a.outputs.sweep(a.ledger.holds)
}

// resumeRunning ends the processes of a run that the agent did not see the
// end of.
func (a *Agent) resumeRunning(h *held) {
	left := plugin.KillLeft(h.group, marker(h.run), leftoverWait)
	a.log.Warn("command was interrupted", "cmd", h.id, "group", h.group.ID, "left", left)
	switch {
	case left > 0:
		a.interrupted(h, fmt.Sprintf("the agent ended while it ran; %d processes of it cannot be ended", left))
	case h.command.GetIdempotent():
		a.ledger.again(h)
		a.requeue(h)
	default:
		a.interrupted(h, "the agent ended while it ran")
	}
}

func (a *Agent) interrupted(h *held, why string) {
	a.finish(h, result{target: &musterv1.Target{
		State: musterv1.Target_INTERRUPTED, Reason: why, StartTime: timestamp(h.started.Wall), EndTime: timestamp(time.Now()),
	}})
}

func (a *Agent) requeue(h *held) {
	j, err := a.newJob(h.command)
	if err != nil {
		a.finish(h, result{target: a.rejected(h.id, err.Error())})
		return
	}
	h.job = j
	a.executor.put(h)
}
