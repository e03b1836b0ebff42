package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of one command.
const (
	maxInput        = 128 << 10
	maxName         = 256
	maxLabels       = 64
	maxTargets      = 100_000
	maxTargetGroups = 100
	defaultExpiry   = time.Hour
	maxExpiry       = 30 * 24 * time.Hour
	defaultTime     = 10 * time.Minute
	maxTime         = 30 * 24 * time.Hour
	maxChunk        = 64 << 10
	maxOutput       = 4 << 20  // kept bytes of one stream of one target
	maxKeptList     = 32 << 10 // bytes of a target list that is shown with its command
	maxLabelBytes   = 16 << 10
	maxReason       = 4 << 10
	maxResult       = 192 << 10
	maxTarget       = store.MaxValue - resultOverhead // bytes of a whole report, which goes into one row
)

// checkCommand returns the faults of a command at once, each with the path of its
// field.
func checkCommand(m *musterv1.Command) error {
	var f faults
	if m == nil {
		return invalid("command", "a command is needed")
	}
	if m.Id != "" || m.State != 0 || m.Counts != nil || m.CreateTime != nil || m.EndTime != nil || m.ExpireTime != nil || m.StateReason != "" {
		f.add("command", "id, state, counts and the times are set by the coordinator")
	}
	if !typeForm.MatchString(m.Type) {
		f.add("type", "%.80q is not a command type: 1 to 64 letters, digits, '.', '_', '-', the first a letter or digit", m.Type)
	}
	if len(m.Name) > maxName {
		f.add("name", "%d bytes, at most %d", len(m.Name), maxName)
	}
	if len(m.Input) > maxInput {
		f.add("input", "%d bytes, at most %d", len(m.Input), maxInput)
	} else if len(m.Input) > 0 && !isObject(m.Input) {
		f.add("input", "a JSON object is needed")
	}
	f.duration("timeout", m.Timeout, maxTime)
	f.duration("expires_in", m.ExpiresIn, maxExpiry)
	f.target(m.Target)
	if len(m.Labels) > maxLabels {
		f.add("labels", "%d labels, at most %d", len(m.Labels), maxLabels)
	}
	if sizeOfMap(m.Labels) > maxLabelBytes {
		f.add("labels", "%d bytes, at most %d", sizeOfMap(m.Labels), maxLabelBytes)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		if k == "" || len(k) > 128 || len(m.Labels[k]) > 1024 {
			f.add(entryPath("labels", k), "a label has a name of 1 to 128 bytes and a value of at most 1024")
		}
	}
	if r := m.Rollout; r != nil {
		f.pause("rollout.pause_between", r.PauseBetween, maxExpiry)
		f.duration("rollout.vanish_after", r.VanishAfter, maxExpiry)
	}
	if m.WhenOffline < 0 || m.WhenOffline > musterv1.Command_CANCEL {
		f.add("when_offline", "QUEUE or CANCEL is needed")
	}
	return f.err()
}

// entryPath is the path of a map's entry: "labels.env", or with quotes for keys
// that are not plain.
func entryPath(field, key string) string {
	if typeForm.MatchString(key) && !strings.Contains(key, ".") {
		return field + "." + key
	}
	return fmt.Sprintf("%s[%.150q]", field, key)
}

func sizeOfMap(m map[string]string) (n int) {
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

func isObject(b []byte) bool {
	return json.Valid(b) && bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{"))
}

func (f *faults) duration(field string, d *durationpb.Duration, limit time.Duration) {
	if d == nil {
		return
	}
	if !d.IsValid() || d.AsDuration() < time.Millisecond || d.AsDuration() > limit {
		f.add(field, "want a duration from 1ms to %s", limit)
	}
}

// pause is like duration, but may be nothing.
func (f *faults) pause(field string, d *durationpb.Duration, limit time.Duration) {
	if d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > limit) {
		f.add(field, "want a duration from 0s to %s", limit)
	}
}

func (f *faults) target(t *musterv1.TargetSelector) {
	ways := 0
	for _, way := range []bool{t.GetAll(), len(t.GetAgents()) > 0, t.GetWhere() != "", len(t.GetGroups()) > 0} {
		if way {
			ways++
		}
	}
	switch {
	case ways == 0:
		f.add("target", "say who it is for: agents (a list that is not empty), groups (likewise), all, or where")
	case ways > 1:
		f.add("target", "agents, groups, all and where exclude each other")
	case len(t.Agents) > maxTargets:
		f.add("target.agents", "%d agents, at most %d", len(t.Agents), maxTargets)
	case len(t.Groups) > maxTargetGroups:
		f.add("target.groups", "%d groups, at most %d", len(t.Groups), maxTargetGroups)
	}
	f.agentIDs("target.agents", t.GetAgents())
}

// agentIDs names those that cannot be ids.
func (f *faults) agentIDs(field string, ids []string) {
	for i, id := range ids {
		if f.full() {
			return
		}
		if !agentIDForm.MatchString(id) {
			f.add(fmt.Sprintf("%s[%d]", field, i), "%.150q is not an agent id", id)
		}
	}
}
