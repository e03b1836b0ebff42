package agentd

import (
	"context"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// pingJob answers without a process: it shows that a command goes all the way
// through the agent and its journal.
type pingJob struct{}

func newPing(c *musterv1.Command) (job, error) {
	_, err := object(c.Input)
	return pingJob{}, err
}

func (pingJob) run(context.Context, run) result {
	now := timestamp(time.Now())
	return result{target: &musterv1.Target{
		State: musterv1.Target_SUCCEEDED, StartTime: now, EndTime: now, Result: []byte(`{"pong":true}`),
	}}
}
