package coordinator

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// exported is a line of Export.
type exported struct {
	Command *struct {
		ID     string
		State  string
		Input  json.RawMessage
		Counts map[string]int
		Reason string `json:"state_reason"`
	}
	Target *struct {
		CommandID string `json:"command_id"`
		AgentID   string `json:"agent_id"`
		State     string
		ExitCode  *int `json:"exit_code"`
		Result    json.RawMessage
		Late      *struct{ State string }
	}
}

func exportOf(t *testing.T, s store.Store) (lines []exported, text string, skipped []string) {
	t.Helper()
	var out bytes.Buffer
	if err := Export(t.Context(), s, &out, func(err error) { skipped = append(skipped, err.Error()) }); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		var l exported
		if err := json.Unmarshal([]byte(line), &l); err != nil || (l.Command == nil) == (l.Target == nil) {
			t.Fatalf("line %q: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines, out.String(), skipped
}

// summed writes each line in a few words.
func summed(lines []exported) string {
	var b strings.Builder
	for _, l := range lines {
		if c := l.Command; c != nil {
			b.WriteString("command " + c.State + "\n")
		} else {
			b.WriteString("  " + l.Target.AgentID + " " + l.Target.State + "\n")
		}
	}
	return b.String()
}

func TestExportShowsCommandsAndTargets(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		const input = `{"argv":["echo","<&>",9007199254740993]}`
		cmd := to("b", "a")
		cmd.Input = []byte(input)
		first := r.submit(cmd).Id
		a.say(&musterv1.Target{CommandId: first, AgentId: "a", State: musterv1.Target_SUCCEEDED, Result: []byte(`{"n": 9007199254740993}`)})
		b.report(first, musterv1.Target_FAILED)
		b.leave()
		r.submit(to("a", "b")) // sent to a only
		third := r.submit(to("b")).Id
		if _, err := r.cmds.PauseCommand(t.Context(), &musterv1.ControlCommandRequest{Id: third, Reason: "lunch"}); err != nil {
			t.Fatal(err)
		}
		lines, text, skipped := exportOf(t, r.store)
		const want = "command DONE\n  a SUCCEEDED\n  b FAILED\ncommand OPEN\n  a SENT\n  b QUEUED\ncommand PAUSED\n  b QUEUED\n"
		if got := summed(lines); got != want || len(skipped) > 0 {
			t.Fatalf("got %s\nwant %s\nskipped %q", got, want, skipped)
		}
		if got := string(lines[0].Command.Input); got != input || !strings.Contains(text, input) {
			t.Errorf("input %s", got)
		}
		if got := string(lines[1].Target.Result); got != `{"n":9007199254740993}` {
			t.Errorf("result %s", got)
		}
		if c := lines[3].Command.Counts; c["total"] != 2 || c["queued"] != 1 || c["sent"] != 1 {
			t.Errorf("counts of an open command: %v", c)
		}
		if got := lines[6].Command.Reason; got != "lunch" {
			t.Errorf("state_reason %q", got)
		}
	})
}

func TestExportShowsWhatCameLate(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := to("a")
		cmd.ExpiresIn, cmd.Timeout = lasting(time.Second), lasting(time.Second)
		id := r.submit(cmd).Id
		time.Sleep(2 * time.Minute)
		a.report(id, musterv1.Target_SUCCEEDED)
		lines, _, _ := exportOf(t, r.store)
		if late := lines[1].Target; late.State != "LOST" || late.Late == nil || late.Late.State != "SUCCEEDED" {
			t.Errorf("got %+v", late)
		}
	})
}

func TestC112ExportPassesABadRecord(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer func() { a.leave(); b.leave() }()
		var ids []string
		for range 5 {
			id := r.submit(to("a", "b")).Id
			a.report(id, musterv1.Target_SUCCEEDED)
			b.report(id, musterv1.Target_SUCCEEDED)
			ids = append(ids, id)
		}
		bad := []byte{0xff}
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{
			{Space: spaceHistory, Key: cmdKey(ids[0]), Value: bad},
			{Space: spaceHistory, Key: packKey(ids[1], 0), Value: bad},
			{Space: spaceHistory, Key: cmdKey(ids[2]), Value: encode(&musterv1.Command{Id: ids[2], Input: []byte("no JSON")})},
			{Space: spaceBulk, Key: targetsKey(ids[3], 0), Value: bad},
		}})
		if err != nil {
			t.Fatal(err)
		}
		lines, _, skipped := exportOf(t, r.store)
		const want = "command DONE\n  b SUCCEEDED\ncommand DONE\n  a SUCCEEDED\n  b SUCCEEDED\ncommand DONE\n  a SUCCEEDED\n  b SUCCEEDED\n"
		if got := summed(lines); got != want {
			t.Errorf("got %s", got)
		}
		if len(skipped) != 3 || !strings.Contains(skipped[0], ids[0]) || !strings.Contains(skipped[1], ids[1]) || !strings.Contains(skipped[2], ids[3]) {
			t.Errorf("skipped %q", skipped)
		}
	})
}

// TestCheckRowKnowsEveryRow makes rows of all kinds.
func TestCheckRowKnowsEveryRow(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		if err := EnsureAdminToken(t.Context(), r.store, t.TempDir()+"/token"); err != nil {
			t.Fatal(err)
		}
		a := r.peer("a").join()
		defer a.leave()
		done, err := r.submitKey("k", to("a"))
		if err != nil {
			t.Fatal(err)
		}
		a.say(&musterv1.OutputChunk{CommandId: done.Id, Stream: musterv1.Stream_STDOUT, Data: []byte("x")})
		a.say(&musterv1.Target{CommandId: done.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 1}, JournalSeq: 7})
		cancelled := r.submit(to("a")).Id
		if _, err := r.cmds.CancelCommand(t.Context(), &musterv1.ControlCommandRequest{Id: cancelled}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		kinds := map[string]bool{}
		for _, space := range Spaces {
			err := r.c.each(t.Context(), space.Name, "", func(kv store.KV) error {
				prefix, _, _ := strings.Cut(string(kv.Key), "/")
				kinds[prefix] = true
				if err := CheckRow(space.Name, kv.Key, kv.Value); err != nil {
					t.Errorf("row %q: %v", kv.Key, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(kinds) < 10 {
			t.Errorf("rows of these kinds only: %v", kinds)
		}
	})
}

func TestCheckRowRefuses(t *testing.T) {
	const id = "01M8NHX3F10HS0QFF2JDMNC8QJ"
	final := &musterv1.Target{CommandId: id, AgentId: "a", State: musterv1.Target_LOST}
	for _, bad := range []struct {
		space      store.Space
		key, value string
	}{
		{"other", "cmd/" + id, ""},
		{spaceFleet, "cmd/" + id, ""},
		{spaceHistory, "cmd", ""},
		{spaceHistory, "cmd/", ""},
		{spaceHistory, "cmd/" + id + "/x", ""},
		{spaceHistory, "cmd/" + id, "\xff"},
		{spaceHistory, "open/" + id, "x"},
		{spaceHistory, "res/" + id, ""},
		{spaceHistory, "res/" + id + "/", ""},
		{spaceHistory, "res/" + id + "/00000000", ""},
		{spaceHistory, "res/" + id + "/a", string(encode(&musterv1.ResultPack{Targets: []*musterv1.Target{final}}))},
		{spaceHistory, "res/" + id + "/00000000", string(encode(&musterv1.ResultPack{Targets: []*musterv1.Target{final, {AgentId: "b"}}}))},
		{spaceHistory, "res/" + id + "/00000000", string(encode(&musterv1.ResultPack{Targets: []*musterv1.Target{final}}))[:5]},
		{spaceHistory, "res/" + id + "/00000000", string(encode(&musterv1.ResultPack{Targets: slices.Repeat([]*musterv1.Target{final}, packTargets+1)}))},
		{spaceHistory, "index/" + id + "/a", ""},
		{spaceHistory, "nonsense/" + id, ""},
		{spaceBulk, "out/" + id + "/a/1/00000000", ""},
		{spaceFleet, "agent/", ""},
	} {
		if CheckRow(bad.space, []byte(bad.key), []byte(bad.value)) == nil {
			t.Errorf("row %q of space %q passes", bad.key, bad.space)
		}
	}
}
