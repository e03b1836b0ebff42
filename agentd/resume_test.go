package agentd

import (
	"testing"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// The link may be up before resume runs: what comes over it is new, and is
// told when it is on disk.
func TestResumeLeavesNewCommandsAlone(t *testing.T) {
	a, err := New(Config{Dir: t.TempDir(), ID: "a", Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.damage = "a torn record" // then what an earlier agent left may have run
	link := newFakeLink(100)
	if err := a.onCancel(link, &musterv1.Cancel{CommandId: "early"}); err != nil {
		t.Fatal(err)
	}
	if err := a.onCommand(link, ping("new")); err != nil {
		t.Fatal(err)
	}
	a.resume()
	if n := len(a.outbox.unacked); n != 0 {
		t.Errorf("%d ends are told that are not on disk", n)
	}
	if h := a.ledger.found(a.ledger.held["new"]); h.state != musterv1.Target_RECEIVED {
		t.Errorf("the new command is %v", h.state)
	}
}
