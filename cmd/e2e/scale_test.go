package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/cmd/internal/history"
)

func TestC106HistoryOf20000(t *testing.T) { showHistory(t, 20_000, 2_000) }

// showHistory starts a coordinator on a history of so many commands with 2 KiB of
// output each, with a cold page cache, and reads lists: alone, and 20 at a time
// while commands are submitted.
func showHistory(t *testing.T, commands, agents int) {
	f := newFleet(t)
	if err := os.Mkdir(f.dataFolder(), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.dataFolder(), "muster.db")
	start := time.Now()
	if err := history.Make(t.Context(), file, history.Size{Agents: agents, Commands: commands, Output: 2048}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d commands, %d agents, file of %d MiB, made in %v", commands, agents, sizeOf(t, file)>>20, time.Since(start))

	lists := map[string]string{
		"commands": "/v1/commands", "commands, oldest first": "/v1/commands?order=asc", "agents": "/v1/agents", "keys": "/v1/keys",
	}
	f.startCoordinator()
	var list struct{ Commands []command }
	f.do("GET", "/v1/commands", "", http.StatusOK, &list)
	if n := len(list.Commands); n != 50 {
		t.Fatalf("the first page has %d commands", n)
	}
	lists["targets"] = "/v1/commands/" + list.Commands[49].ID + "/targets"
	best := map[string]time.Duration{} // of three: what is measured is the coordinator, not its neighbours
	measure := func(what string, took time.Duration) {
		if old, there := best[what]; !there || took < old {
			best[what] = took
		}
	}
	for range 3 {
		f.coordinator.kill()
		uncache(t, file)
		start = time.Now()
		f.startCoordinator()
		measure("restart", time.Since(start))
		for name, path := range lists {
			measure(name+", cold", f.timed("GET", path, ""))
		}
		for name, path := range lists {
			measure(name, f.timed("GET", path, ""))
		}
	}
	want(t, "restart to ready, cold", best["restart"], 2*time.Second)
	for name := range lists {
		want(t, "first page, cold: "+name, best[name+", cold"], 50*time.Millisecond)
		want(t, "first page: "+name, best[name], 50*time.Millisecond)
	}
	for name, filter := range map[string]string{
		"agent": `"agent-000007" in agents`,
		"state": `state == "DONE"`,
		"time":  `create_time > timestamp("` + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + `")`,
		"none":  `name == "no such name"`,
	} {
		want(t, "first page, filter by "+name, f.timed("GET", "/v1/commands?filter="+url.QueryEscape(filter), ""), 500*time.Millisecond)
	}
	f.showReadersAndWriters()
}

// showReadersAndWriters submits 50 commands a second while 20 readers list, each
// ten times a second.
func (f *fleet) showReadersAndWriters() {
	t := f.t
	f.startAgent("a1")
	f.waitOnline("a1")
	before := f.coordinator.residentKiB()
	peak := before
	stop := make(chan struct{})
	var readers sync.WaitGroup
	reads := make([]durations, 20)
	for i := range reads {
		paths := []string{"/v1/commands", "/v1/commands?order=asc", "/v1/agents", "/v1/commands?filter=" + url.QueryEscape(`state == "DONE"`)}
		readers.Go(func() { reads[i] = f.paced(stop, 10, paths...) })
	}
	// A request that touches nothing tells what the machine has to give: a write
	// wakes four goroutines in turn, and each waits for a processor as that does.
	var idle durations
	readers.Go(func() { idle = f.paced(stop, 50, "/healthz") })
	var writes durations
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	body := commandBody([]string{"a1"}, "true")
	for range 250 {
		<-tick.C
		writes = append(writes, f.timed("POST", "/v1/commands", body))
		peak = max(peak, f.coordinator.residentKiB())
	}
	close(stop)
	readers.Wait()
	t.Logf("20 readers: %v; writes: %v; idle: %v", slices.Concat(reads...), writes, idle)
	want(t, "write beside 20 readers, p99", writes.at(99), max(200*time.Millisecond, 4*idle.at(99)))
	t.Logf("memory from %d to %d KiB", before, peak)
	if peak-before > 100<<10 {
		t.Errorf("memory grew by %d KiB, at most 100 MiB", peak-before)
	}
}

// paced sends so many requests a second until stop is closed.
func (f *fleet) paced(stop <-chan struct{}, perSecond int, paths ...string) (took durations) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return took
		case <-tick.C:
			took = append(took, f.timed("GET", paths[i%len(paths)], ""))
		}
	}
}

type durations []time.Duration

// at returns a percentile.
func (d durations) at(percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[len(sorted)*percent/100]
}

func (d durations) String() string {
	return fmt.Sprintf("%d, median %v, p99 %v", len(d), d.at(50), d.at(99))
}

// timed is how long a request that must succeed takes.
func (f *fleet) timed(method, path, body string) time.Duration {
	start := time.Now()
	status, answer, err := f.ask(method, path, body)
	took := time.Since(start)
	if err != nil || status/100 != 2 {
		f.t.Errorf("%s %s: %d %.300s %v", method, path, status, answer, err)
	}
	return took
}

func want(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%-40s %v", what, took)
	if took > limit {
		t.Errorf("%s took %v, at most %v", what, took, limit)
	}
}

// uncache takes a file out of the page cache.
func uncache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // what is dirty stays
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
