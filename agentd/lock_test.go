package agentd

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An agent that died while it started a program leaves the lock to that for a
// moment: the next one waits for it, and not for an agent that lives.
func TestLockOfADeadAgentIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		dead, err := lockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(lockWait/2, func() { dead.Close() })
		alive, err := lockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer alive.Close()
		began := time.Now()
		if _, err := lockDir(dir); err == nil || !strings.Contains(err.Error(), "in use by another agent") || time.Since(began) > 2*lockWait {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}
