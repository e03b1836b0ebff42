package agentd

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// The agent's machine sleeps for half an hour with a command in the queue that
// expires in ten minutes. Timers stood still meanwhile; the boot-time clock did
// not. The command is not started.
func TestC052CommandExpiresWhileTheMachineSleeps(t *testing.T) {
	n, dir := bustest.NewNet(), t.TempDir()
	c := serve(t, n)
	var boot atomic.Int64
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, Parallel: 1,
		clock: clock{bootID: "this", boot: func() time.Duration { return time.Duration(boot.Load()) }}})
	gate, ran := filepath.Join(dir, "gate"), filepath.Join(dir, "ran")
	soon, later := shell("soon", "echo soon >>"+ran), shell("later", "echo later >>"+ran)
	soon.ExpiresIn, later.ExpiresIn = durationpb.New(10*time.Minute), durationpb.New(time.Hour)
	c.send(t, shell("holds", "true"+waitFile(gate)), soon, later)
	c.waitFor(t, "later", musterv1.Target_RECEIVED)
	boot.Add(int64(30 * time.Minute))
	touch(t, gate)
	if end := c.end(t, "soon"); end.State != musterv1.Target_EXPIRED {
		t.Errorf("the one that expired in its sleep: %v", end)
	}
	if end := c.end(t, "later"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("the one that has time left: %v", end)
	}
	if b, err := os.ReadFile(ran); err != nil || string(b) != "later\n" {
		t.Errorf("ran: %q %v", b, err)
	}
}
