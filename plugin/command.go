package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Contract is the version of the contract that RunCommand speaks; plugins find
// it in MUSTER_CONTRACT.
const Contract = 1

// Command is what a plugin is asked to do.
type Command struct {
	ID      string            `json:"id"`
	Type    string            `json:"type"`
	Name    string            `json:"name,omitempty"`
	AgentID string            `json:"agent_id"`
	Input   json.RawMessage   `json:"input,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Timeout string            `json:"timeout,omitempty"` // as people write it: "90s"
}

// Environment is what the contract adds to a program's environment, for
// plugins and for exec alike.
func (c Command) Environment() []string {
	env := []string{
		"MUSTER_CONTRACT=" + strconv.Itoa(Contract),
		"MUSTER_COMMAND_ID=" + c.ID,
		"MUSTER_COMMAND_TYPE=" + c.Type,
		"MUSTER_AGENT_ID=" + c.AgentID,
	}
	// A label for people may hold anything; the environment cannot.
	if c.Name != "" && strings.IndexByte(c.Name, 0) < 0 {
		env = append(env, "MUSTER_COMMAND_NAME="+c.Name)
	}
	return env
}

// Report is what a plugin said, besides how it ended.
type Report struct {
	Result  json.RawMessage // nil: none that is valid
	Invalid error           // what was wrong with the output
}

// RunCommand runs the plugin at path in run mode: "PLUGIN run", the command as
// one JSON object on its standard input, Lines on its standard output. The
// command succeeded when the outcome is OK and the report has a result; an
// exit code other than 0 wins over any result. Of p, what the contract decides
// is overwritten: Path, Args, Stdin and Stdout.
func RunCommand(ctx context.Context, path string, c Command, lines *Lines, p Program) (Outcome, Report) {
	if p.Timeout > 0 {
		c.Timeout = p.Timeout.Round(time.Millisecond).String()
	}
	var in bytes.Buffer
	e := json.NewEncoder(&in)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		return Outcome{StartErr: &StartError{Reason: BadArgument, Path: path, Err: fmt.Errorf("input: %w", err)}}, Report{}
	}
	if p.Env == nil {
		p.Env = Environ(c.Environment()...)
	}
	p.Path, p.Args, p.Stdin = path, []string{path, "run"}, in.Bytes()
	p.Stdout = func(b []byte) { _, _ = lines.Write(b) }
	o := Run(ctx, p)
	var r Report
	if o.StartErr == nil {
		r.Result, r.Invalid = lines.Result()
	}
	return o, r
}
