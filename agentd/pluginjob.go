package agentd

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// pluginJob runs a plugin once for a command. Of what it says only the result
// goes up; there is no message for progress and resources, so progress is
// logged for whoever debugs a plugin. Both are in its output, which does go up.
type pluginJob struct {
	path    string
	command plugin.Command
	program plugin.Program
	log     *slog.Logger
}

func (j *pluginJob) run(ctx context.Context, r run) result {
	p := r.of(j.program, j.command.Environment())
	lines := &plugin.Lines{Progress: func(m json.RawMessage) {
		j.log.Debug("progress", "cmd", j.command.ID, "progress", string(m))
	}}
	o, report := plugin.RunCommand(ctx, j.path, j.command, lines, p)
	t := outcome(o, p.Timeout, context.Cause(ctx))
	t.Result = report.Result
	if t.State == musterv1.Target_SUCCEEDED && report.Invalid != nil {
		t.State, t.Reason = musterv1.Target_FAILED, "invalid output: "+report.Invalid.Error()
		if said := lastWordsOf(o.Stderr.Kept); said != "" {
			t.Reason = reason(t.Reason + "; it said: " + said)
		}
	}
	return result{target: t, stdout: o.Stdout, stderr: o.Stderr, ran: o.StartErr == nil}
}
