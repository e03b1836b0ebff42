package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Export writes the history as lines of JSON, oldest first: {"command":{…}} and
// behind it a {"target":{…}} for each of its targets, by agent. Fields have the
// names that they have in REST. A record that cannot be read is told to skipped
// and left out.
func Export(ctx context.Context, s store.Store, w io.Writer, skipped func(error)) error {
	x := &exporter{store: s, lines: json.NewEncoder(w), skipped: skipped}
	x.lines.SetEscapeHTML(false)
	return eachRow(ctx, s, spaceHistory, []byte(cmdPrefix), nil, func(head store.KV) error {
		err := x.command(ctx, head)
		if errors.Is(err, errBadRow) {
			skipped(err)
			return nil
		}
		return err
	})
}

type exporter struct {
	store   store.Store
	lines   *json.Encoder
	skipped func(error)
}

func (x *exporter) command(ctx context.Context, head store.KV) error {
	id, _ := splitKey(head.Key, cmdPrefix)
	kvs, err := x.store.Get(ctx, spaceHistory, sumKey(id), ctlKey(id))
	if err != nil {
		return err
	}
	cmd, err := stored(head, kvs[0], kvs[1])
	if err != nil {
		return err
	}
	agents, err := targetList(ctx, x.store, id)
	if err != nil {
		return err
	}
	var states []musterv1.Target_State
	if ended := kvs[0].Rev != 0; !ended {
		if states, err = x.states(ctx, id, agents); err != nil {
			return err
		}
		open(cmd, kvs[1], states)
	}
	if err := x.line("command", head.Key, func() (fields, error) { return commandFields(cmd) }); err != nil {
		return err
	}
	return x.targets(ctx, id, agents, states)
}

// states says where each target of a command stands that has not ended.
func (x *exporter) states(ctx context.Context, id string, agents []string) ([]musterv1.Target_State, error) {
	states := make([]musterv1.Target_State, len(agents))
	for i := range states {
		states[i] = musterv1.Target_QUEUED
	}
	err := x.each(ctx, sentPrefix+id+"/", func(kv store.KV) error {
		return eachMark(kv, len(states), func(i int) { states[i] = musterv1.Target_SENT })
	})
	if err != nil {
		return nil, err
	}
	return states, x.each(ctx, resPrefix+id+"/", func(kv store.KV) error {
		t := &musterv1.Target{}
		if i, ok := slices.BinarySearch(agents, agentOf(kv)); ok && decode(kv.Key, kv.Value, t) == nil {
			states[i] = t.State
		}
		return nil
	})
}

// open gives a command that has not ended what the ledger would know of it.
func open(cmd *musterv1.Command, control store.KV, states []musterv1.Target_State) {
	var n counts
	for _, s := range states {
		if int(s) < len(n) {
			n[s]++
		}
	}
	cmd.Counts = n.proto()
	ctl := &musterv1.CommandControl{}
	if decode(control.Key, control.Value, ctl) == nil && ctl.State != 0 {
		cmd.State = ctl.State
	}
}

// targets writes the targets of a command. Those without a result have a state.
func (x *exporter) targets(ctx context.Context, id string, agents []string, states []musterv1.Target_State) error {
	next := 0
	waiting := func(before string) error { // both lists are sorted
		for ; next < len(agents) && (before == "" || agents[next] < before); next++ {
			if states == nil {
				continue // its result could not be read, or a retention was cut short
			}
			if err := x.target(&musterv1.Target{CommandId: id, AgentId: agents[next], State: states[next]}); err != nil {
				return err
			}
		}
		return nil
	}
	err := x.each(ctx, resPrefix+id+"/", func(kv store.KV) error {
		agent := agentOf(kv)
		if err := waiting(agent); err != nil {
			return err
		}
		if next < len(agents) && agents[next] == agent {
			next++
		}
		t := &musterv1.Target{}
		if err := decode(kv.Key, kv.Value, t); err != nil {
			x.skipped(err)
			return nil
		}
		late, err := x.store.Get(ctx, spaceHistory, lateKey(id, agent))
		if err != nil {
			return err
		}
		if late[0].Rev != 0 {
			t.Late = &musterv1.Target{}
			if err := decode(late[0].Key, late[0].Value, t.Late); err != nil {
				x.skipped(err)
				t.Late = nil
			}
		}
		return x.target(t)
	})
	if err != nil {
		return err
	}
	return waiting("")
}

func (x *exporter) target(t *musterv1.Target) error {
	return x.line("target", resKey(t.CommandId, t.AgentId), func() (fields, error) { return targetFields(t) })
}

func (x *exporter) each(ctx context.Context, prefix string, fn func(store.KV) error) error {
	return eachRow(ctx, x.store, spaceHistory, []byte(prefix), nil, fn)
}

func agentOf(result store.KV) string {
	_, agent := splitKey(result.Key, resPrefix)
	return agent
}

// fields are a message's as JSON, by their proto names.
type fields map[string]any

// line writes {"kind":{…}}. What cannot be shown as JSON is left out.
func (x *exporter) line(kind string, key []byte, show func() (fields, error)) error {
	f, err := show()
	if err != nil {
		x.skipped(fmt.Errorf("row %q: %w", key, err))
		return nil
	}
	return x.lines.Encode(map[string]fields{kind: f})
}

func commandFields(cmd *musterv1.Command) (fields, error) {
	input := cmd.Input
	cmd.Input = nil
	f, err := fieldsOf(cmd)
	if err == nil {
		f["input"] = spliced(input)
	}
	return f, err
}

func targetFields(t *musterv1.Target) (fields, error) {
	result, late := t.Result, t.Late
	t.Result, t.Late, t.JournalSeq = nil, nil, 0
	f, err := fieldsOf(t)
	if err == nil && len(result) > 0 {
		f["result"] = spliced(result)
	}
	if err == nil && late != nil {
		f["late"], err = targetFields(late)
	}
	return f, err
}

func fieldsOf(m proto.Message) (fields, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	f := fields{}
	for name, value := range raw {
		f[name] = value
	}
	return f, nil
}

// spliced is bytes that hold JSON, put into the line untouched.
func spliced(b []byte) any {
	if json.Valid(b) {
		return json.RawMessage(b)
	}
	return string(b)
}
