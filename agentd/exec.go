package agentd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// execJob runs an argv. Its input is
//
//	{"argv": ["prog", "arg", …], "env": {"NAME": "value"}, "dir": "/path", "stdin": "text"}
//
// of which only argv is required. The argv goes to the program as it is; there
// is no shell. The environment is the agent's with env over it; the directory
// is / unless dir is given.
type execJob struct {
	program plugin.Program
	env     []string
}

// newExec reads what a command asks for. own is what muster tells the program in
// its environment.
func newExec(c *musterv1.Command, p plugin.Program, own []string) (job, error) {
	in, err := object(c.Input, "argv", "env", "dir", "stdin")
	if err != nil {
		return nil, err
	}
	argv, err := in.strings("argv")
	if err != nil {
		return nil, err
	}
	env, err := in.table("env")
	if err != nil {
		return nil, err
	}
	dir, _, err := in.string("dir")
	if err != nil {
		return nil, err
	}
	stdin, given, err := in.string("stdin")
	if err != nil {
		return nil, err
	}
	switch {
	case len(argv) == 0:
		return nil, errors.New("input.argv: want at least the program's name")
	case argv[0] == "":
		return nil, errors.New("input.argv[0]: the program's name is empty")
	case dir != "" && !filepath.IsAbs(dir), strings.IndexByte(dir, 0) >= 0:
		return nil, fmt.Errorf("input.dir: %.200q is not an absolute path", dir)
	}
	for i, arg := range argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, fmt.Errorf("input.argv[%d]: a NUL byte cannot be passed to a program", i)
		}
	}
	extra, err := variables(env)
	if err != nil {
		return nil, err
	}
	p.Args, p.Dir = argv, dir
	if given {
		p.Stdin = []byte(stdin)
	}
	return &execJob{program: p, env: append(extra, own...)}, nil
}

func (j *execJob) run(ctx context.Context, r run) result {
	p := r.of(j.program, j.env)
	o := plugin.Run(ctx, p)
	return result{target: outcome(o, p.Timeout, context.Cause(ctx)), stdout: o.Stdout, stderr: o.Stderr, ran: o.StartErr == nil}
}

// variables makes environment entries of what a command asks for.
func variables(env map[string]string) ([]string, error) {
	var list []string
	for name, value := range env {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return nil, fmt.Errorf("input.env: %.100q is not a variable's name", name)
		case plugin.Reserved(name):
			return nil, fmt.Errorf("input.env.%.100s: names that begin with MUSTER_ are reserved", name)
		case strings.IndexByte(value, 0) >= 0:
			return nil, fmt.Errorf("input.env.%.100s: a NUL byte cannot be passed to a program", name)
		}
		list = append(list, name+"="+value)
	}
	return list, nil
}
