package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type key struct {
	ID      string
	State   string
	AgentID string `json:"agent_id"`
	Address string
}

// keys asks the command line.
func (f *fleet) keys(which string) []key {
	f.t.Helper()
	stdout, stderr, code := f.muster("keys", which, "-o", "json")
	var list struct{ Keys []key }
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil {
		f.t.Fatalf("muster keys %s: exit %d, %v: %s", which, code, err, stderr)
	}
	return list.Keys
}

// waitPending returns the key that waits and asks to be that agent.
func (f *fleet) waitPending(agent string) (found key) {
	f.t.Helper()
	eventually(f.t, 30*time.Second, "a key waits for "+agent, func() bool {
		for _, k := range f.keys("pending") {
			if k.AgentID == agent {
				found = k
			}
		}
		return found.ID != ""
	})
	return found
}

// joinLine is the command that the coordinator printed for agents elsewhere.
func (f *fleet) joinLine() (line string) {
	f.t.Helper()
	eventually(f.t, 10*time.Second, "the line to join with is printed", func() bool {
		for l := range strings.Lines(readFile(f.t, f.coordinator.log)) {
			if l = strings.TrimSpace(l); strings.HasPrefix(l, "muster-agentd ") {
				line = l
			}
		}
		return line != ""
	})
	return line
}

// cutAndKeptOut revokes a key: the link of its agent is cut within a second, and
// the agent does not come back.
func (f *fleet) cutAndKeptOut(k key, agent string) {
	f.t.Helper()
	f.wantMuster(0, []string{"keys", "revoke", k.ID})
	start := time.Now()
	eventually(f.t, time.Second, agent+" is cut", func() bool { return f.statuses()[agent] != "ONLINE" })
	f.t.Logf("cut %v after its key was revoked", time.Since(start))
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); <-time.After(50 * time.Millisecond) {
		if f.statuses()[agent] == "ONLINE" {
			f.t.Fatalf("%s is back after %v", agent, time.Since(start))
		}
	}
}

// maxBackOff is the longest time between two tries of an agent to connect, 8 s,
// and a little for a busy machine.
const maxBackOff = 15 * time.Second

// An agent on another host joins by the line that the coordinator printed and
// by approval of its key, runs a command, and is cut when the key is revoked.
// Nobody else gets its id: neither another key, nor another agent with its own.
func TestC036AgentOnAnotherHostJoinsByKey(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	f := startFleetAt(t, n.here)
	join := func(dir, flags string) *process {
		return n.start("far", strings.Replace(f.joinLine(), " DIR", " "+f.agentDir(dir), 1)+" --allow exec "+flags)
	}
	far := join("far", "--id far")
	k := f.waitPending("far")
	if !strings.HasPrefix(k.Address, n.there+":") {
		t.Errorf("the key is shown as from %s, want %s", k.Address, n.there)
	}
	if len(f.statuses()) > 0 {
		t.Errorf("agents before approval: %v", f.statuses())
	}
	f.wantMuster(0, []string{"keys", "approve", k.ID})
	f.waitOnline("far")
	f.wantMuster(0, []string{"run", "far", "--", "cat", "/sys/class/net/lo/operstate", "/proc/sys/kernel/hostname"}, "SUCCEEDED")
	if got := f.agent("far"); !strings.HasPrefix(got.Address, n.there+":") {
		t.Errorf("its link comes from %s", got.Address)
	}

	join("impostor", "--id far")
	second := f.waitPending("far")
	if second.ID == k.ID {
		t.Fatal("the approved key waits")
	}
	if _, stderr, code := f.muster("keys", "approve", second.ID); code != 1 || !strings.Contains(stderr, "revoke that one first") {
		t.Errorf("a second key for one id: exit %d: %s", code, stderr)
	}
	far.kill()
	copyFile(t, filepath.Join(f.agentDir("far"), "agent.key"), filepath.Join(f.agentDir("renamed"), "agent.key"))
	renamed := join("renamed", "--id renamed")
	eventually(t, 30*time.Second, "the agent with another's key is refused", func() bool {
		return strings.Contains(renamed.logTail(), "REFUSED") || strings.Contains(renamed.logTail(), "refused")
	})
	renamed.kill()
	join("far", "")
	f.waitOnline("far")
	if status := f.statuses(); len(status) != 1 {
		t.Errorf("agents: %v, want far alone", status)
	}

	f.cutAndKeptOut(k, "far")
	f.wantMuster(0, []string{"keys", "approve", second.ID}) // now the id is free
	eventually(t, maxBackOff, "the agent with the second key is online", func() bool { return f.statuses()["far"] == "ONLINE" })
}

// A listener that asks for keys serves nobody who offers none.
func TestC007NoKeyNoLink(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--curve")
	p, err := dialRaw(f.endpoint, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.handshake(); err == nil {
		t.Error("a peer without a key gets through the handshake")
	}
	a := f.startAgent("plain") // on loopback it may try without a key
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); <-time.After(100 * time.Millisecond) {
		if status := f.statuses(); len(status) > 0 {
			t.Fatalf("agents: %v", status)
		}
	}
	if !a.running() {
		t.Error("the agent gave up")
	}
}

// An agent whose key is unknown for a while is online within one back-off after
// it is approved; none of the two has to be started again.
func TestC028UnknownKeyIsApprovedLater(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--curve")
	f.startAgent("a1", "--server-key", serverKeyOf(t, f.joinLine()))
	k := f.waitPending("a1")
	<-time.After(unknownKeyFor)
	if got := f.waitPending("a1"); got.ID != k.ID {
		t.Errorf("the key was %s, now %s", k.ID, got.ID)
	}
	f.wantMuster(0, []string{"keys", "approve", k.ID})
	start := time.Now()
	eventually(t, maxBackOff, "a1 is online", func() bool { return f.statuses()["a1"] == "ONLINE" })
	t.Logf("online %v after approval", time.Since(start))
	if got := f.waitDone(f.submit(commandBody([]string{"a1"}, "true")), 10*time.Second)["a1"]; got.State != "SUCCEEDED" {
		t.Errorf("got %+v", got)
	}

	f.coordinator.kill() // what was approved stays so
	f.startCoordinator()
	f.waitOnline("a1")
	if pending := f.keys("pending"); len(pending) > 0 {
		t.Errorf("pending after the restart: %+v", pending)
	}
	f.cutAndKeptOut(k, "a1")
	f.coordinator.kill()
	f.startCoordinator()
	<-time.After(3 * time.Second)
	if status := f.statuses()["a1"]; status == "ONLINE" {
		t.Error("the restart forgot that the key is revoked")
	}
	f.wantMuster(0, []string{"keys", "approve", k.ID})
	eventually(t, maxBackOff, "a1 is online again", func() bool { return f.statuses()["a1"] == "ONLINE" })
}

// An agent that is given the key of another coordinator does not talk to this one.
func TestC025WrongServerKey(t *testing.T) {
	t.Parallel()
	f, other := startFleet(t, "--curve"), startFleet(t, "--curve")
	a := f.startAgent("a1", "--server-key", serverKeyOf(t, other.joinLine()))
	eventually(t, 20*time.Second, "the agent says why it has no link", func() bool { return strings.Contains(a.logTail(), "handshake") })
	if keys := f.keys("list"); len(keys) > 0 {
		t.Errorf("keys: %+v", keys)
	}
	eventually(t, 10*time.Second, "the coordinator counts it", func() bool {
		return f.counted("muster_bus_refused_total")
	})
}

func serverKeyOf(t *testing.T, line string) string {
	t.Helper()
	_, rest, _ := strings.Cut(line, "--server-key '")
	key, _, ok := strings.Cut(rest, "'")
	if !ok || len(key) != 40 {
		t.Fatalf("no key in %q", line)
	}
	return key
}
