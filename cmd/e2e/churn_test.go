package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster/cmd/internal/simagent"
)

var goroutines = regexp.MustCompile(`(?m)^go_goroutines ([0-9]+)$`)

func (f *fleet) goroutines() int {
	f.t.Helper()
	m := goroutines.FindStringSubmatch(f.metrics())
	if m == nil {
		f.t.Fatal("no go_goroutines in the metrics")
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// Thousands of connections come and go: a third says nothing, a third shakes
// hands, a third sends a message of a type that nobody knows. Nothing is left of
// them: no agent, no descriptor, no goroutine, no memory.
func TestC022ConnectionChurn(t *testing.T) {
	t.Parallel()
	f := startFrugal(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	fds, routines := f.coordinator.descriptors(), f.goroutines()
	f.churn(churnConnections / 2)
	memory := f.coordinator.residentKiB()
	f.churn(churnConnections)
	t.Logf("%d KiB after the first, %d after all", memory, f.coordinator.residentKiB())
	eventually(t, time.Minute, "descriptors and goroutines are back", func() bool {
		return f.coordinator.descriptors() <= fds+10 && f.goroutines() <= routines+20
	})
	eventually(t, time.Minute, fmt.Sprintf("memory is near %d KiB again", memory), func() bool {
		return f.coordinator.residentKiB() <= memory+memory/5
	})
	if status := f.statuses(); len(status) != 1 || status["a1"] != "ONLINE" {
		t.Errorf("listed: %v", status)
	}
}

// churn opens n connections, 200 at a time.
func (f *fleet) churn(n int) {
	f.t.Helper()
	var wg sync.WaitGroup
	var shaken atomic.Int64
	defer func() {
		if got := shaken.Load(); got < int64(n)/2 { // of two thirds
			f.t.Errorf("only %d of %d connections shook hands", got, n)
		}
	}()
	for worker := range 200 {
		wg.Go(func() {
			for i := worker; i < n; i += 200 {
				p, err := dialRaw(f.endpoint, 0)
				if err != nil {
					f.t.Error(err)
					return
				}
				if i%3 > 0 && p.handshake() == nil { // else there are too many at once
					shaken.Add(1)
					if i%3 == 2 && p.sendFrames([]byte("nobody.knows.This"), nil, nil) == nil {
						p.nack() // so that it was read
					}
				}
				p.Close()
			}
		})
	}
	wg.Wait()
}

// The coordinator is down for a while, and then started again several times in a
// row, with many agents. All come back, operators are answered meanwhile, nobody
// is listed twice, and real agents dial more and more rarely, each at moments of
// its own.
func TestC023ReconnectStorm(t *testing.T) {
	f := startFleet(t)
	simulate(t, f.endpoint, simagent.Config{Agents: stormAgents})
	relays := make([]*relay, stormRealAgents)
	for i := range relays {
		relays[i] = startRelay(t, f.endpoint)
		f.startAgentVia(relays[i].endpoint(), fmt.Sprint("real-", i), "--log", "error")
	}
	f.waitOnlineCount(stormAgents+stormRealAgents, time.Minute)
	f.coordinator.kill()
	down := time.Now()
	<-time.After(stormOutage)
	f.wantOwnSchedules(relays, down)

	var slowest time.Duration
	for range 1 + stormRestarts {
		f.startCoordinator()
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			start := time.Now()
			f.do("GET", "/v1/agents?page_size=10", "", 200, nil)
			slowest = max(slowest, time.Since(start))
		}
		f.coordinator.kill()
	}
	f.startCoordinator()
	f.waitOnlineCount(stormAgents+stormRealAgents, 30*time.Second)
	if n := len(f.statuses()); n != stormAgents+stormRealAgents {
		t.Errorf("%d agents are listed", n)
	}
	if slowest > 2*time.Second {
		t.Errorf("an answer took %v", slowest)
	}
}

// wantOwnSchedules wants the gaps between an agent's dials to grow, and no two
// agents to dial at the same moments.
func (f *fleet) wantOwnSchedules(relays []*relay, since time.Time) {
	f.t.Helper()
	at := map[int64]int{} // dials, by the 10 ms
	total := 0
	for i, r := range relays {
		n := 0
		var first, last time.Time
		for _, d := range r.dialled() {
			if d.Before(since) {
				continue
			}
			if n++; n == 1 {
				first = d
			}
			last = d
			at[d.Sub(since).Milliseconds()/10]++
			total++
		}
		// The limit of the gaps doubles from 100 ms to 8 s: their mean is far
		// above what it began with.
		if n > 4 && last.Sub(first)/time.Duration(n-1) < 150*time.Millisecond || n > 25+int(stormOutage/(5*time.Second)) {
			f.t.Errorf("agent %d dialled %d times in %v", i, n, stormOutage)
		}
	}
	shared := 0
	for _, n := range at {
		if n > 1 {
			shared += n
		}
	}
	if total == 0 || shared > total/2 {
		f.t.Errorf("%d of %d dials were made at one moment with another agent's", shared, total)
	}
}
