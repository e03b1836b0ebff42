package agentd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// job is a command that was understood and can be run.
type job interface {
	run(ctx context.Context, r run) result
}

// run is what a job gets of the agent.
type run struct {
	mark   string       // the marker of its processes
	again  bool         // it was started before
	onDisk func() error // blocks until its start is journaled: no process before that
	joined func(plugin.Group)
	live   func(stdout, stderr plugin.Head) // nil: its output is told at its end
	grown  func()
}

// of is a program of this run, with env over the agent's environment.
func (r run) of(p plugin.Program, env []string) plugin.Program {
	p.Env = plugin.Environ(env...)
	p.Marker, p.Await, p.Started, p.Live, p.Grown = marker(r.mark), r.onDisk, r.joined, r.live, r.grown
	return p
}

// result is what came of a job.
type result struct {
	target         *musterv1.Target // state, reason and so on; nothing about output
	stdout, stderr plugin.Output
	ran            bool // a process was there: its output is described
}

const (
	execType = "exec"
	pingType = "ping"

	maxInput       = 128 << 10
	maxCommand     = 256 << 10 // all of it, so that it fits a record
	maxReason      = 4 << 10
	defaultTimeout = 10 * time.Minute
)

// types are the command types that can be run, and what the plugins among them
// say of themselves.
func (a *Agent) types() ([]string, []*musterv1.Plugin) {
	types := []string{pingType}
	if a.allowed(execType) {
		types = append(types, execType)
	}
	more, plugins := a.plugins.list()
	return append(types, more...), plugins
}

// builtIn reports whether a type is the agent's own. A plugin of that name is
// never run.
func builtIn(name string) bool { return name == pingType || name == execType }

// newJob understands a command, or says why it is REJECTED.
func (a *Agent) newJob(c *musterv1.Command) (job, error) {
	if n := proto.Size(c); n > maxCommand {
		return nil, fmt.Errorf("command of %d bytes, at most %d", n, maxCommand)
	}
	if len(c.Input) > maxInput {
		return nil, fmt.Errorf("input: %d bytes, at most %d", len(c.Input), maxInput)
	}
	switch c.Type {
	case pingType:
		return newPing(c)
	case execType:
		if !a.allowed(execType) {
			return nil, errors.New("this agent does not allow exec: start it with --allow exec")
		}
		return newExec(c, a.program(c), a.asked(c).Environment())
	}
	path, err := plugin.Folder(a.cfg.PluginDir).Resolve(c.Type)
	if errors.Is(err, plugin.ErrNoPlugin) {
		return nil, fmt.Errorf("this agent has no command type %q", c.Type)
	} else if err != nil {
		return nil, err
	}
	if err := a.plugins.refuses(c.Type); err != nil {
		return nil, err
	}
	return &pluginJob{path: path, command: a.asked(c), program: a.program(c), log: a.log}, nil
}

func (a *Agent) allowed(name string) bool {
	return slices.Contains(a.cfg.Allow, name)
}

// asked is the command as programs get to know it.
func (a *Agent) asked(c *musterv1.Command) plugin.Command {
	return plugin.Command{ID: c.Id, Type: c.Type, Name: c.Name, AgentID: a.id, Input: c.Input, Labels: c.Labels}
}

// program is what all programs have in common.
func (a *Agent) program(c *musterv1.Command) plugin.Program {
	p := plugin.Program{
		Timeout:   defaultTimeout,
		Grace:     a.cfg.StopGrace,
		OutputCap: a.cfg.OutputCap,
	}
	if d := c.Timeout.AsDuration(); d > 0 {
		p.Timeout = d
	}
	return p
}

// marker is the variable by which the processes of a run are found again.
func marker(run string) string { return "MUSTER_RUN=" + run }

// outcome tells how a program ended in the words of a Target.
// stopped is why the run was stopped, if it was.
func outcome(o plugin.Outcome, timeout time.Duration, stopped error) *musterv1.Target {
	t := &musterv1.Target{}
	if o.StartErr != nil {
		t.State, t.Reason = musterv1.Target_FAILED, reason(o.StartErr.Error())
		return t
	}
	if o.Cause == plugin.Stopped && errors.Is(stopped, errCancelled) && o.Start.Equal(o.End) {
		t.State, t.Reason, t.EndTime = musterv1.Target_CANCELLED, "cancelled before it was started", timestamppb.New(o.End)
		return t
	}
	t.StartTime, t.EndTime, t.Signal = timestamppb.New(o.Start), timestamppb.New(o.End), o.Signal
	if o.Signal == "" && !o.Stuck {
		code := int32(o.ExitCode)
		t.ExitCode = &code
	}
	switch {
	case o.Cause == plugin.TimedOut:
		t.State, t.Reason = musterv1.Target_TIMED_OUT, fmt.Sprintf("it was stopped after its timeout of %v", timeout)
	case o.Cause == plugin.Stopped && errors.Is(stopped, errCancelled):
		t.State, t.Reason = musterv1.Target_INTERRUPTED, errCancelled.Error()
	case o.Cause == plugin.Stopped:
		t.State, t.Reason = musterv1.Target_INTERRUPTED, "the agent was stopped while it ran"
		if o.Start.Equal(o.End) {
			t.ExitCode, t.Reason = nil, "the agent was stopped before it ran"
		}
	case o.Signal != "":
		t.State, t.Reason = musterv1.Target_FAILED, "ended by "+o.Signal
	case o.ExitCode != 0:
		t.State, t.Reason = musterv1.Target_FAILED, fmt.Sprintf("exit code %d", o.ExitCode)
		if said := lastWordsOf(o.Stderr.Kept); said != "" {
			t.Reason = reason(said)
		}
	default:
		t.State = musterv1.Target_SUCCEEDED
	}
	if o.Stuck {
		t.Reason += "; it did not end even when killed"
	}
	return t
}

// lastWordsOf is the end of what a program said on standard error.
func lastWordsOf(stderr []byte) string {
	const enough = 1 << 10
	if len(stderr) > enough {
		stderr = stderr[len(stderr)-enough:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(stderr), "?"))
}

// reason makes a text fit for Target.reason.
func reason(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxReason {
		return s
	}
	s = s[:maxReason]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
