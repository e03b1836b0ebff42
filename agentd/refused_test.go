package agentd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestRefusedReportIsReplacedOnce(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	c := serve(t, n)
	c.note(func() { c.refuse = func(m *musterv1.Target) bool { return m.Stdout.GetKept() > 0 } })
	a := runAgent(t, n, Config{Dir: dir, ID: "a", Allow: []string{"exec"}})
	c.send(t, shell("x", "echo hi; exit 3"))
	c.until(t, "the plain report", func() bool { return c.finals("x") == 2 })
	c.mu.Lock()
	plain := c.all("x")[len(c.all("x"))-1]
	c.mu.Unlock()
	if plain.State != musterv1.Target_FAILED || plain.Reason != "the coordinator refused the report: result: nonsense" || plain.Stdout != nil || plain.AgentId != "a" || plain.JournalSeq == 0 {
		t.Errorf("got %v", plain)
	}
	until(t, "the ack", func() bool { return !a.ledger.holds("x") })
	if b, err := os.ReadFile(filepath.Join(dir, "refused", "x.json")); err != nil || !strings.Contains(string(b), "FAILED") || !strings.Contains(string(b), "stdout") {
		t.Errorf("set aside: %s, %v", b, err)
	}
}

func TestRefusedPlainReportIsGivenUp(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	c := serve(t, n)
	c.note(func() { c.refuse = func(m *musterv1.Target) bool { return m.CommandId == "x" } })
	cfg := Config{Dir: dir, ID: "a", Allow: []string{"exec"}}
	a := runAgent(t, n, cfg)
	x := shell("x", "echo hi")
	c.send(t, x)
	until(t, "the agent to give up", func() bool { return c.told("x") == 2 && !a.ledger.holds("x") })
	c.send(t, x, ping("later")) // it does not run again
	c.end(t, "later")
	c.cut(t)
	c.send(t, ping("last"))
	c.end(t, "last")
	if n := c.told("x"); n != 2 {
		t.Errorf("told %d times", n)
	}
	a.stop()
	if left, _ := os.ReadDir(filepath.Join(dir, "output")); len(left) > 0 {
		t.Errorf("kept output is left: %v", left)
	}
}

// Over a start the plain report stays what is told; a Nack that comes twice, or
// for what nobody asked, changes nothing.
func TestRefusedReportOverAStart(t *testing.T) {
	dir, n := t.TempDir(), bustest.NewNet()
	c := serve(t, n)
	c.setSilent(true)
	cfg := Config{Dir: dir, ID: "a"}
	a := runAgent(t, n, cfg)
	c.send(t, ping("x"))
	c.end(t, "x")
	nack := &musterv1.Nack{Type: targetType, Reason: musterv1.Nack_INVALID, Detail: "\xff" + strings.Repeat("long", 5000)}
	for _, reply := range []string{"", "y", "y+", "x+", "x", "x", "+"} {
		if err := a.onNack(newFakeLink(10), &musterv1.Envelope{InReplyTo: reply}, nack); err != nil {
			t.Error(err)
		}
	}
	c.until(t, "the plain report", func() bool { return c.finals("x") == 2 })
	a.stop()
	before := c.told("x")
	runAgent(t, n, cfg)
	c.until(t, "it again", func() bool { return c.finals("x") > before })
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all("x")
	if last := all[len(all)-1]; last.State != musterv1.Target_SUCCEEDED || last.Result != nil || len(last.Reason) > maxReason {
		t.Errorf("got %.200v", last)
	}
}
