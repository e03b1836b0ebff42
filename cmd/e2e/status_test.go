package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent answers commands with every state there is and some that there are
// not, without a reason, with one of a mebibyte, and with a success that has one.
// Each is stored and shown. A state that nobody knows, or that is not an agent's
// to tell, is answered with a Nack and shown as what was refused last; the target
// is never a success by it, and LOST when its time is over.
func TestC059AgentReportsErrors(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--grace", "1s")
	p := f.registered("raw")
	var unknown []string
	long := strings.Repeat("e", 1<<20)
	code := int32(7)
	for _, tc := range []struct {
		report *musterv1.Target
		want   string // "": refused
	}{
		{&musterv1.Target{State: musterv1.Target_SUCCEEDED}, "SUCCEEDED"},
		{&musterv1.Target{State: musterv1.Target_SUCCEEDED, Reason: "an error all the same"}, "SUCCEEDED"},
		{&musterv1.Target{State: musterv1.Target_FAILED}, "FAILED"},
		{&musterv1.Target{State: musterv1.Target_FAILED, ExitCode: &code, Reason: long}, "FAILED"},
		{&musterv1.Target{State: musterv1.Target_TIMED_OUT, Reason: "late"}, "TIMED_OUT"},
		{&musterv1.Target{State: musterv1.Target_INTERRUPTED}, "INTERRUPTED"},
		{&musterv1.Target{State: musterv1.Target_REJECTED, Reason: long}, "REJECTED"},
		{&musterv1.Target{State: musterv1.Target_CANCELLED}, "CANCELLED"},
		{&musterv1.Target{State: musterv1.Target_EXPIRED}, "EXPIRED"},
		{&musterv1.Target{State: 99, Reason: "new here"}, ""},
		{&musterv1.Target{State: -1}, ""},
		{&musterv1.Target{State: 1<<31 - 1, Reason: long}, ""},
		{&musterv1.Target{State: musterv1.Target_STATE_UNSPECIFIED}, ""},
		{&musterv1.Target{State: musterv1.Target_QUEUED}, ""},
		{&musterv1.Target{State: musterv1.Target_SENT}, ""},
		{&musterv1.Target{State: musterv1.Target_LOST}, ""},
	} {
		id := f.submit(`{"type":"ping","target":{"agents":["raw"]},"expires_in":"5s","timeout":"1s"}`)
		p.want(t, "muster.v1.Command")
		report := tc.report
		report.CommandId, report.AgentId = id, "raw"
		if err := p.send(report); err != nil {
			t.Fatal(err)
		}
		if tc.want == "" {
			if n, err := p.nack(); err != nil || n.Reason != musterv1.Nack_INVALID || n.Field != "state" {
				t.Errorf("state %d: %v %v", report.State, n, err)
			}
			if got := f.targets(id)["raw"]; got.final() {
				t.Errorf("state %d: %+v", report.State, got)
			}
			if got := f.agent("raw").Queue.LastRefusal; !strings.Contains(got, id) {
				t.Errorf("state %d: last refused %q", report.State, got)
			}
			unknown = append(unknown, id)
			continue
		}
		got := f.waitDone(id, 10*time.Second)["raw"]
		if got.State != tc.want || len(got.Reason) > 4096 || report.Reason != "" && got.Reason == "" {
			t.Errorf("state %d: %s, %d bytes of a reason", report.State, got.State, len(got.Reason))
		}
		p.want(t, "muster.v1.TargetAck")
	}
	for _, id := range unknown {
		if got := f.waitDone(id, 15*time.Second)["raw"]; got.State != "LOST" {
			t.Errorf("a state that nobody knows: %+v", got)
		}
	}
	if !f.coordinator.running() {
		t.Fatal("the coordinator is gone")
	}
	f.startAgent("a1")
	f.waitOnline("a1")
	f.wantEcho("a1")
}

// An agent that is online is deleted with commands open; it comes back as a new
// one, and what it did can be read.
func TestC058DeletedAgentComesBackAsNew(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	done := f.submit(commandBody([]string{"a1"}, "true"))
	f.waitDone(done, 10*time.Second)
	var open []string
	for range 3 {
		open = append(open, f.submit(commandBody([]string{"a1"}, "sleep 60")))
	}
	f.waitState(open[0], "a1", "RUNNING", 10*time.Second)
	before := f.agent("a1").RegisterTime
	f.do("DELETE", "/v1/agents/a1", "", http.StatusNoContent, nil)
	for _, id := range open {
		if got := f.targets(id)["a1"]; got.State != "LOST" && got.State != "CANCELLED" {
			t.Errorf("got %+v", got)
		}
	}
	f.waitOnline("a1") // by the documented rule
	if now := f.agent("a1").RegisterTime; !now.After(before) {
		t.Errorf("first seen %v, before it was deleted %v", now, before)
	}
	f.wantEcho("a1")
	if got := f.targets(done)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("the history: %+v", got)
	}
}
