package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/cmd/internal/simagent"
)

// simulate keeps n simulated agents connected to an endpoint until the test ends.
func simulate(t *testing.T, endpoint string, cfg simagent.Config) *simagent.Fleet {
	t.Helper()
	var d net.Dialer
	cfg.Dial = func(ctx context.Context, _ int) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", strings.TrimPrefix(endpoint, "tcp://"))
	}
	s, err := simagent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// online counts the agents that are ONLINE.
func (f *fleet) online() (n int) {
	f.t.Helper()
	for _, status := range f.statuses() {
		if status == "ONLINE" {
			n++
		}
	}
	return n
}

func (f *fleet) waitOnlineCount(n int, within time.Duration) {
	f.t.Helper()
	eventually(f.t, within, fmt.Sprintf("%d agents online", n), func() bool { return f.online() == n })
}

// descriptors counts the open files of a process.
func (p *process) descriptors() int {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}

func wentOffline(e event) bool { return e.Kind == "agent" && e.Agent.Status == "OFFLINE" }

// The coordinator is stopped for three times what makes an agent OFFLINE, and
// then again and again for a little less, while agents run commands. Nobody is OFFLINE
// at any time, all are online within 10 s, and what runs ends as it should.
func TestC051StoppedCoordinatorTakesNobodyOffline(t *testing.T) {
	t.Parallel()
	showPauses(t, 100, 27*time.Second, 2, 8*time.Second, "--heartbeat", "1s", "--offline-after", "9s")
}

func showPauses(t *testing.T, agents int, long time.Duration, times int, short time.Duration, flags ...string) {
	f := startFleet(t, flags...)
	simulate(t, f.endpoint, simagent.Config{Agents: agents, Delay: long + 5*time.Second})
	f.waitOnlineCount(agents, 30*time.Second)
	watch := f.watch("?kinds=agent")
	id := f.submit(fmt.Sprintf(`{"type":"ping","target":{"all":true},"timeout":"%ds"}`, int(3*long.Seconds())))
	eventually(t, 10*time.Second, "it runs everywhere", func() bool {
		var cmd command
		f.do("GET", "/v1/commands/"+id, "", 200, &cmd)
		return cmd.Counts["running"] == agents
	})
	pauses := []time.Duration{long}
	for range times {
		pauses = append(pauses, short)
	}
	for _, pause := range pauses {
		f.coordinator.signal(syscall.SIGSTOP)
		<-time.After(pause) // the pause is the case
		f.coordinator.signal(syscall.SIGCONT)
		f.waitOnlineCount(agents, 10*time.Second)
	}
	for agent, got := range f.waitDone(id, long+30*time.Second) {
		if got.State != "SUCCEEDED" {
			t.Errorf("%s: %+v", agent, got)
		}
	}
	if n := watch.count(wentOffline); n != 0 {
		t.Errorf("%d events say that an agent is offline", n)
	}
	if n := len(f.statuses()); n != agents {
		t.Errorf("%d agents are listed, want %d", n, agents)
	}
}

// Agents that are killed, stopped, or behind a relay that stands still are
// OFFLINE when the documented time is over, and not before.
func TestC053OfflineDetection(t *testing.T) {
	t.Parallel()
	const after = 5 * time.Second
	f := startFleet(t, "--heartbeat", "1s", "--offline-after", after.String())
	r := startRelay(t, f.endpoint)
	killed, stopped := f.startAgent("killed"), f.startAgent("stopped")
	f.startAgentVia(r.endpoint(), "frozen")
	f.startAgent("well")
	f.waitOnline("killed", "stopped", "frozen", "well")
	killed.kill()
	stopped.signal(syscall.SIGSTOP)
	r.freeze()
	began := time.Now()
	f.wantOfflineIn(began, after, "killed", "stopped", "frozen")
	if got := f.statuses()["well"]; got != "ONLINE" {
		t.Errorf("the one that is well is %s", got)
	}
	stopped.signal(syscall.SIGCONT)
	r.thaw()
	f.waitOnline("stopped", "frozen")
}

// wantOfflineIn wants agents that went silent at some time to be OFFLINE between
// the documented time after their last beat and twice that.
func (f *fleet) wantOfflineIn(began time.Time, after time.Duration, agents ...string) {
	f.t.Helper()
	const beat = 1100 * time.Millisecond // the last one may have been that long ago
	seen := map[string]time.Duration{}
	eventually(f.t, 2*after+time.Second, fmt.Sprintf("%q offline", agents), func() bool {
		status := f.statuses()
		for _, id := range agents {
			if status[id] == "OFFLINE" && seen[id] == 0 {
				seen[id] = time.Since(began)
			}
		}
		return len(seen) == len(agents)
	})
	for id, took := range seen {
		if took < after-beat || took > 2*after {
			f.t.Errorf("%s is offline after %v, want %v to %v", id, took, after, 2*after)
		}
	}
}

// The same while the disk of the coordinator is full: what cannot be written is
// right in memory, and the error is told.
func TestC053OfflineDetectionOnAFullDisk(t *testing.T) {
	const after = 5 * time.Second
	f := newFleet(t, "--heartbeat", "1s", "--offline-after", after.String())
	mountTmpfs(t, f.dataFolder(), "size=4m")
	f.startCoordinator()
	a := f.startAgent("a1")
	f.waitOnline("a1")
	fillDisk(t, filepath.Join(f.dataFolder(), "filler"))
	a.kill()
	f.wantOfflineIn(time.Now(), after, "a1")
}

// A relay stands still with a hundred agents behind it. They are OFFLINE in time,
// their descriptors are free, and when it goes on each of them is served again; a
// command that was sent into the dead links meanwhile runs once.
func TestC021FrozenRelay(t *testing.T) {
	t.Parallel()
	const after = 4 * time.Second
	f := startFleet(t, "--heartbeat", "1s", "--offline-after", after.String())
	r := startRelay(t, f.endpoint)
	before := f.coordinator.descriptors()
	s := simulate(t, r.endpoint(), simagent.Config{Agents: frozenAgents})
	f.waitOnlineCount(frozenAgents, 30*time.Second)
	r.freeze()
	began := time.Now()
	id := f.submit(`{"type":"ping","target":{"all":true},"timeout":"1m"}`)
	eventually(t, 2*after, "all are offline", func() bool {
		for _, status := range f.statuses() {
			if status != "OFFLINE" {
				return false
			}
		}
		return true
	})
	if took := time.Since(began); took < after-1100*time.Millisecond {
		t.Errorf("all are offline after %v", took)
	}
	eventually(t, 2*after, "their descriptors are free", func() bool { return f.coordinator.descriptors() <= before+10 })
	<-time.After(frozenFor)
	r.thaw()
	f.waitOnlineCount(frozenAgents, 45*time.Second) // a handshake that the relay held up is given up after 10 s, and the longest back-off is 8 s
	for agent, got := range f.waitDone(id, time.Minute) {
		if got.State != "SUCCEEDED" {
			t.Errorf("%s: %+v", agent, got)
		}
	}
	if got := s.Report(); got.Commands != frozenAgents {
		t.Errorf("%d commands were started, want %d", got.Commands, frozenAgents)
	}
}

// An agent is killed while it runs a command and is back within a second: a new
// session, in which the command is settled. When it is stopped in order it is
// shown so at once.
func TestC055QuickRestartAndOrderlyStop(t *testing.T) {
	t.Parallel()
	f := startFleet(t) // with the offline timeout of 5 minutes
	a := f.startAgent("a1")
	f.waitOnline("a1")
	run := f.agent("a1").RunID
	id := f.submit(commandBody([]string{"a1"}, "sleep 60"))
	f.waitState(id, "a1", "RUNNING", 10*time.Second)
	a.kill()
	a = f.startAgent("a1")
	if got := f.waitDone(id, 10*time.Second)["a1"]; got.State != "INTERRUPTED" {
		t.Errorf("what ran is %+v", got)
	}
	f.waitOnline("a1")
	if now := f.agent("a1").RunID; now == run {
		t.Error("the coordinator did not notice the new process")
	}
	a.signal(syscall.SIGTERM)
	a.wantExit(10*time.Second, 0)
	eventually(t, 2*time.Second, "it is shown as stopped", func() bool {
		got := f.agent("a1")
		return got.Status == "OFFLINE" && got.Left
	})
	f.startAgent("a1")
	f.waitOnline("a1")
	if f.agent("a1").Left {
		t.Error("it is back, and shown as left")
	}
}
