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
	at, states, err := x.stand(ctx, id, agents)
	if err != nil {
		return err
	}
	if ended := kvs[0].Rev != 0; ended {
		states = nil // one without a result could not be read, or a retention was cut short
	} else {
		open(cmd, kvs[1], states)
	}
	if err := x.line("command", head.Key, func() (fields, error) { return commandFields(cmd) }); err != nil {
		return err
	}
	for from := 0; from < len(agents); from += exportedAtOnce {
		to := min(from+exportedAtOnce, len(agents))
		ts, err := targetsAt(ctx, x.store, id, at[from:to])
		if err != nil {
			return err
		}
		for i, t := range ts {
			if t == nil && states != nil {
				ts[i] = &musterv1.Target{CommandId: id, AgentId: agents[from+i], State: states[from+i]}
			}
		}
		if err := x.targets(ctx, id, ts); err != nil {
			return err
		}
	}
	return nil
}

// exportedAtOnce are held in memory.
const exportedAtOnce = 500

// stand says where each target of a command stands: where its final Target is, and
// its state.
func (x *exporter) stand(ctx context.Context, id string, agents []string) ([]place, []musterv1.Target_State, error) {
	oc := &openCommand{targets: agents, places: places{at: make([]place, len(agents))}}
	states := make([]musterv1.Target_State, len(agents))
	for i := range states {
		states[i] = musterv1.Target_QUEUED
	}
	err := x.each(ctx, sentPrefix+id+"/", func(kv store.KV) error {
		return eachMark(kv, len(states), func(i int) { states[i] = musterv1.Target_SENT })
	})
	if err != nil {
		return nil, nil, err
	}
	return oc.places.at, states, x.each(ctx, resPrefix+id+"/", func(kv store.KV) error {
		n, ts, err := unpack(kv)
		if err != nil {
			x.skipped(err)
			return nil
		}
		oc.learn(n, ts, func(i int, t *musterv1.Target) { states[i] = t.State })
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

// targets writes some targets of a command, but for those that are nil.
func (x *exporter) targets(ctx context.Context, id string, ts []*musterv1.Target) error {
	ts = slices.DeleteFunc(ts, func(t *musterv1.Target) bool { return t == nil })
	err := addLate(ctx, x.store, id, ts, func(err error) error { x.skipped(err); return nil })
	if err != nil {
		return err
	}
	for _, t := range ts {
		if err := x.target(t); err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) target(t *musterv1.Target) error {
	return x.line("target", []byte(resPrefix+t.CommandId+"/…/"+t.AgentId), func() (fields, error) { return targetFields(t) })
}

func (x *exporter) each(ctx context.Context, prefix string, fn func(store.KV) error) error {
	return eachRow(ctx, x.store, spaceHistory, []byte(prefix), nil, fn)
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
