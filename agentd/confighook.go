package agentd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/plugin"
)

// hooks is how check_cmd and reload_cmd are run.
type hooks struct {
	allowed bool
	grace   time.Duration
}

const hookOutput = 8 << 10 // kept of each stream

var (
	errHooks   = errors.New("this agent does not allow check_cmd and reload_cmd: start it with --allow hooks")
	errStopped = errors.New("the agent was stopped meanwhile")
)

// hook is one program of a config. It runs in the config root, with
//
//	MUSTER_CONFIG_NAME, MUSTER_CONFIG_KIND, MUSTER_CONFIG_VERSION
//	MUSTER_CONFIG_FILE    the file that it is about: staged for check_cmd
//	MUSTER_CONFIG_TARGET  where it is to be
//
// in its environment. No shell sees its arguments.
type hook struct {
	name string // check_cmd or reload_cmd
	argv []string
	file string
	mark string
}

// runHook runs a hook of a version. Where there is none it is satisfied.
func (a *applier) runHook(ctx context.Context, key configKey, c *content, k hook) error {
	if len(k.argv) == 0 {
		return nil
	}
	if !a.hooks.allowed {
		return errHooks
	}
	o := plugin.Run(ctx, plugin.Program{
		Args: k.argv,
		Dir:  a.root,
		Env: plugin.Environ(
			"MUSTER_CONFIG_NAME="+key.name,
			"MUSTER_CONFIG_KIND="+key.kind.String(),
			"MUSTER_CONFIG_VERSION="+strconv.Itoa(int(c.Version)),
			"MUSTER_CONFIG_FILE="+k.file,
			"MUSTER_CONFIG_TARGET="+a.target(c),
		),
		Timeout: c.Timeout, Grace: a.hooks.grace, OutputCap: hookOutput, Marker: marker(k.mark),
	})
	if o.OK() {
		return nil
	}
	if o.Cause == plugin.Stopped {
		return errStopped
	}
	return fmt.Errorf("%s: %s", k.name, refusal(o, c.Timeout))
}

// refusal is why a hook did not accept, with the end of what it said.
func refusal(o plugin.Outcome, timeout time.Duration) string {
	var why string
	switch {
	case o.StartErr != nil:
		return o.StartErr.Error()
	case o.Cause == plugin.TimedOut:
		why = fmt.Sprintf("it was stopped after its timeout of %v", timeout)
	case o.Signal != "":
		why = "ended by " + o.Signal
	default:
		why = fmt.Sprintf("exit code %d", o.ExitCode)
	}
	if o.Stuck {
		why += "; it did not end even when killed"
	}
	said := lastWordsOf(o.Stderr.Kept)
	if said == "" {
		said = lastWordsOf(o.Stdout.Kept)
	}
	if said != "" {
		why += ": " + said
	}
	return why
}

// filled puts the staged file's name where an argument has {}.
func filled(argv []string, file string) []string {
	all := make([]string, len(argv))
	for i, arg := range argv {
		all[i] = strings.ReplaceAll(arg, "{}", file)
	}
	return all
}

// target is the whole name of a config's file.
func (a *applier) target(c *content) string { return filepath.Join(a.root, c.Path) }
