package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of one CEL expression: its text, its cost for one object, and the time
// for all objects.
const (
	maxExpr      = 4 << 10
	exprCost     = 10_000
	selectorTime = 2 * time.Second
)

var errTooLong = errors.New("it takes too long; compare fewer things")

// expression is a compiled CEL expression that is true or false of an object.
// It may be used concurrently.
type expression struct {
	prog cel.Program
	refs map[string]bool // variables it names
}

// agentEnv and commandEnv are what selectors and filters may speak of.
var (
	agentEnv = sync.OnceValue(func() *cel.Env {
		return environment(
			cel.Variable("id", cel.StringType), cel.Variable("type", cel.StringType), cel.Variable("status", cel.StringType),
			cel.Variable("version", cel.StringType), cel.Variable("os", cel.StringType), cel.Variable("arch", cel.StringType),
			cel.Variable("ip", cel.StringType), cel.Variable("hostname", cel.StringType),
			cel.Variable("tags", cel.MapType(cel.StringType, cel.StringType)),
			cel.Variable("attributes", cel.MapType(cel.StringType, cel.StringType)),
		)
	})
	commandEnv = sync.OnceValue(func() *cel.Env {
		return environment(
			cel.Variable("id", cel.StringType), cel.Variable("type", cel.StringType), cel.Variable("name", cel.StringType),
			cel.Variable("state", cel.StringType), cel.Variable("labels", cel.MapType(cel.StringType, cel.StringType)),
			cel.Variable("create_time", cel.TimestampType), cel.Variable("agents", cel.ListType(cel.StringType)),
		)
	})
)

func environment(vars ...cel.EnvOption) *cel.Env {
	env, err := cel.NewEnv(vars...)
	if err != nil {
		panic(err) // a mistake in this file
	}
	return env
}

// compile checks an expression; field is its path for the error.
func compile(env *cel.Env, field, text string) (*expression, error) {
	if len(text) > maxExpr {
		return nil, invalid(field, "%d bytes, at most %d", len(text), maxExpr)
	}
	ast, iss := env.Compile(text)
	if iss.Err() != nil {
		return nil, invalid(field, "not a CEL expression: %s", oneLine(iss.Err().Error()))
	}
	if ast.OutputType() != cel.BoolType {
		return nil, invalid(field, "the expression is %s, want true or false", ast.OutputType())
	}
	prog, err := env.Program(ast, cel.CostLimit(exprCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, invalid(field, "not a CEL expression: %s", oneLine(err.Error()))
	}
	refs := map[string]bool{}
	for _, r := range ast.NativeRep().ReferenceMap() {
		refs[r.Name] = true
	}
	return &expression{prog, refs}, nil
}

// matches evaluates the expression. What cannot be evaluated, such as a tag
// that is not there, does not match; only cost and time are errors.
func (e *expression) matches(ctx context.Context, vars map[string]any) (bool, error) {
	out, _, err := e.prog.ContextEval(ctx, vars)
	switch {
	case ctx.Err() != nil, err != nil && strings.Contains(err.Error(), "cost limit"):
		return false, errTooLong
	case err != nil:
		return false, nil
	}
	return out == types.True, nil
}

// oneLine keeps the first line of an error, for a field violation.
func oneLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return cutText(s, 300)
}

func agentVars(a *musterv1.Agent) map[string]any {
	at := a.GetAttributes()
	return map[string]any{
		"id": a.Id, "type": a.Type, "status": a.Status.String(), "version": at.GetVersion(), "os": at.GetOs(), "arch": at.GetArch(),
		"ip": at.GetIp(), "hostname": at.GetHostname(), "tags": nonNil(a.Tags), "attributes": nonNil(at.GetExtras()),
	}
}

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// matching returns the ids of the agents that an expression selects, sorted.
func (c *Coordinator) matching(ctx context.Context, where string) ([]string, error) {
	e, err := compile(agentEnv(), "target.where", where)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, selectorTime)
	defer cancel()
	var ids []string
	for _, id := range c.fleet.ids() {
		a := c.fleet.facts(id)
		if a == nil {
			continue
		}
		ok, err := e.matches(ctx, agentVars(a))
		if err != nil {
			return nil, invalid("target.where", "%v", err)
		}
		if ok {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, noTargets("target.where", fmt.Sprintf("no agent matches %.200q", where))
	}
	return ids, nil
}

// sameFacts reports whether two rows are the same to every selector, but for the
// status.
func sameFacts(a, b *musterv1.Agent) bool {
	if a == nil || b == nil {
		return a == b
	}
	at, bt := a.GetAttributes(), b.GetAttributes()
	return a.Type == b.Type && maps.Equal(a.Tags, b.Tags) && maps.Equal(at.GetExtras(), bt.GetExtras()) &&
		at.GetVersion() == bt.GetVersion() && at.GetOs() == bt.GetOs() && at.GetArch() == bt.GetArch() &&
		at.GetIp() == bt.GetIp() && at.GetHostname() == bt.GetHostname()
}

// facts is what selectors look at: the stored row with the status of now. The
// maps are shared and must not be changed.
func (f *fleet) facts(id string) *musterv1.Agent {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	if a == nil || a.row == nil {
		return nil
	}
	return &musterv1.Agent{Id: a.id, Type: a.row.Type, Status: a.status, Attributes: a.row.Attributes, Tags: a.row.Tags}
}
