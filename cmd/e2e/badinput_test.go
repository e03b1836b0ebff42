package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// What an agent says wrong is answered with a Nack that says what is wrong, and
// leaves the link and everybody else as they were.
func TestBadMessagesAreAnswered(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("good")
	f.waitOnline("good")
	frame := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	register := []byte("muster.v1.Register")
	whole := frame(&musterv1.Register{AgentId: "bad", RunId: "run", SequenceNum: 1})
	for _, tc := range []struct {
		name   string
		frames [][]byte
		reason musterv1.Nack_Reason
		field  string
	}{
		{"two frames", [][]byte{register, whole}, musterv1.Nack_MALFORMED, ""},
		{"five frames", [][]byte{register, nil, whole, register, whole}, musterv1.Nack_MALFORMED, ""},
		{"one empty frame", [][]byte{nil}, musterv1.Nack_MALFORMED, ""},
		{"unknown type", [][]byte{[]byte("muster.v1.Nonsense"), nil, nil}, musterv1.Nack_UNKNOWN_TYPE, ""},
		{"body cut short", [][]byte{register, nil, whole[:len(whole)-3]}, musterv1.Nack_MALFORMED, ""},
		{"envelope that does not parse", [][]byte{register, []byte("\xff\xff"), whole}, musterv1.Nack_MALFORMED, ""},
		{"no id", [][]byte{register, nil, frame(&musterv1.Register{RunId: "run"})}, musterv1.Nack_INVALID, "agent_id"},
		{"bad id", [][]byte{register, nil, frame(&musterv1.Register{AgentId: "../x", RunId: "run"})}, musterv1.Nack_INVALID, "agent_id"},
		{"beat before registration", [][]byte{[]byte("muster.v1.Heartbeat"), nil, nil}, musterv1.Nack_NOT_REGISTERED, ""},
	} {
		p, err := dialRaw(f.endpoint, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.handshake(); err != nil {
			t.Fatal(err)
		}
		if err := p.sendFrames(tc.frames...); err != nil {
			t.Fatal(err)
		}
		got, err := p.nack()
		if err != nil || got.Reason != tc.reason || got.Field != tc.field {
			t.Errorf("%s: %v %v, want %v %q", tc.name, got, err, tc.reason, tc.field)
		}
		// The same link is good for a right message.
		if err := p.register("late"); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if frames, err := p.receive(); err != nil || string(frames[0]) != "muster.v1.Registered" {
			t.Errorf("%s: %q %v after it, want Registered", tc.name, frames, err)
		}
		p.Close()
	}
	if status := f.statuses(); status["bad"] != "" || status["good"] != "ONLINE" {
		t.Errorf("%v", status)
	}
	f.wantEcho("good")
	metrics := f.metrics()
	for _, want := range []string{"muster_bus_", "muster_coordinator_", "process_resident_memory_bytes"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// What an operator asks wrong is refused with the field's path, and nothing is stored.
func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("good")
	f.waitOnline("good")
	for _, tc := range []struct {
		body   string
		status int
		field  string
	}{
		{`{"type":"exec","input":{"argv":["true"]},"target":{"agents":[]}}`, 422, "target"},
		{`{"type":"exec","input":{"argv":["true"]}}`, 422, "target"},
		{`{"type":"exec","input":{"argv":["true"]},"target":{"agents":["good","nobody"]}}`, 422, "target.agents[1]"},
		{`{"type":"exec","inputt":{"argv":["true"]},"target":{"agents":["good"]}}`, 422, "inputt"},
		{`{"type":"exec","input":{"argv":["true"]},"target":{"agent":["good"]}}`, 422, "target.agent"},
		{`{"type":"exec","input":{"argv":["true"]},"target":{"agents":["good"]},"timeout":"soon"}`, 422, "timeout"},
		{`{"type":"exec"`, 400, ""},
		{`[]`, 400, ""},
	} {
		status, answer, err := f.ask("POST", "/v1/commands", tc.body)
		if err != nil || status != tc.status || !strings.Contains(string(answer), tc.field) {
			t.Errorf("%s: %d %s %v, want %d and %q", tc.body, status, answer, err, tc.status, tc.field)
		}
	}
	var list struct{ Commands []command }
	f.do("GET", "/v1/commands", "", http.StatusOK, &list)
	if len(list.Commands) > 0 {
		t.Errorf("commands were stored: %+v", list.Commands)
	}
	for path, want := range map[string]int{"/v1/agents/nobody": 404, "/v1/commands/nothing": 404, "/v1/nothing": 404, "/healthz": 200} {
		if status, answer, err := f.ask("GET", path, ""); err != nil || status != want {
			t.Errorf("GET %s: %d %s %v, want %d", path, status, answer, err, want)
		}
	}
}

// What cannot be right is refused at the start, in one line that says why.
func TestProgramsRefuseToStart(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	dir := t.TempDir()
	for _, tc := range []struct{ args, want string }{
		{"muster up --data " + dir + " --curve --insecure-southbound", "exclude"},
		{"muster up --data " + dir + " --listen-agents nonsense", "nonsense"},
		{"muster up --data " + dir + " --listen-agents " + f.endpoint, "address already in use"},
		{"muster up --data " + dir + " --listen-agents tcp://127.0.0.1:0 --listen-http " + strings.TrimPrefix(f.url, "http://"), "address already in use"},
		{"muster up --data " + filepath.Join(f.dir, "coordinator") + " --listen-agents tcp://127.0.0.1:0 --listen-http 127.0.0.1:0", filepath.Join(f.dir, "coordinator")},
		{"muster-agentd --data " + filepath.Join(f.dir, "a1"), filepath.Join(f.dir, "a1")},
		{"muster-agentd --data " + dir + "/x --id ../x", "../x"},
		{"muster-agentd --data " + dir + "/x --tag novalue", "novalue"},
		{"muster-agentd --data " + dir + "/x --allow everything", "everything"},
		{"muster-agentd --data " + dir + "/x --config-root " + dir + "/none", "config root"},
		{"muster-agentd --data " + dir + "/x --config-root " + dir, "holds the data folder"},
		{"muster-agentd --data " + dir + "/x --stop-grace 0s", "stop-grace"},
		{"muster-agentd --data " + dir + "/x --nonsense", "nonsense"},
		{"muster-agentd --data " + dir + "/x nonsense", "nonsense"},
		{"muster-agentd --data " + dir + "/y --coordinator nonsense", "nonsense"},
	} {
		args := strings.Fields(tc.args)
		p := startProcess(t, args[0], exec.Command(filepath.Join(bin, args[0]), args[1:]...))
		select {
		case <-p.gone:
		case <-time.After(15 * time.Second):
			t.Errorf("%s: still runs", tc.args)
			p.kill()
			continue
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.logTail(), tc.want) {
			t.Errorf("%s: exit %d, want 1 and %q:\n%s", tc.args, code, tc.want, p.logTail())
		}
	}
}
