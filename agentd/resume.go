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
// again. Nothing is started before. A coordinator may speak to us already: what
// it sent since the journal was read is not an earlier agent's.
func (a *Agent) resume() {
	for _, h := range a.inherited {
		was := a.ledger.found(h)
		switch {
		case was.final != nil:
			a.tell(h) // unless it ended just now, and is told when that is on disk
		case was.state == musterv1.Target_RUNNING:
			a.resumeRunning(h, was)
		case was.command == nil, was.cancelled, a.damage != "" && !was.command.Idempotent:
			left := plugin.KillMarked("MUSTER_COMMAND_ID="+h.id, "MUSTER_AGENT_ID="+a.id)
			a.log.Warn("command may have run", "cmd", h.id, "killed", left)
			a.interrupted(h, was, "the agent's journal was damaged: it may have run")
		default:
			a.requeue(h, was)
		}
	}
	a.inherited = nil
	a.outputs.sweep(a.ledger.holds)
}

// resumeRunning ends the processes of a run that the agent did not see the
// end of.
func (a *Agent) resumeRunning(h *held, was held) {
	left := plugin.KillLeft(was.group, marker(was.run), leftoverWait)
	a.log.Warn("command was interrupted", "cmd", h.id, "group", was.group.ID, "left", left)
	switch {
	case left > 0:
		a.interrupted(h, was, fmt.Sprintf("the agent ended while it ran; %d processes of it cannot be ended", left))
	case was.command.GetIdempotent() && !was.cancelled:
		a.requeue(h, was)
	default:
		a.interrupted(h, was, "the agent ended while it ran")
	}
}

func (a *Agent) interrupted(h *held, was held, why string) {
	if was.cancelled {
		why = errCancelled.Error() + "; " + why
	}
	a.finish(h, result{target: &musterv1.Target{
		State: musterv1.Target_INTERRUPTED, Reason: why, StartTime: timestamp(was.started.Wall), EndTime: timestamp(time.Now()),
	}})
}

// requeue lets a command start that had not begun, or that may run again.
func (a *Agent) requeue(h *held, was held) {
	j, err := a.newJob(was.command)
	switch {
	case err != nil:
		a.finish(h, result{target: a.rejected(h.id, err.Error())})
	case a.ledger.again(h, j):
		a.executor.put(h)
	default: // cancelled since, if it is not final
		a.interrupted(h, a.ledger.found(h), "the agent ended while it ran")
	}
}
