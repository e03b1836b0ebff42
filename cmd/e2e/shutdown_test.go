package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// SIGTERM ends the coordinator in under 2 s with event streams and long polls open.
func TestC068CoordinatorStopsWithStreamsOpen(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	record := filepath.Join(t.TempDir(), "record")
	id := f.submit(commandBody([]string{"a1"}, `echo run >>"$1"; sleep 30`, record))
	eventually(t, 10*time.Second, "the program runs", func() bool { return len(linesOf(t, record)) == 1 })

	var streams []*events
	for range 5 {
		streams = append(streams, f.watch(""))
	}
	polled := make(chan error, 5)
	for range cap(polled) {
		go func() {
			status, answer, err := f.ask("GET", "/v1/commands/"+id+"?wait=30s", "")
			if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
				err = fmt.Errorf("%d %s", status, answer)
			}
			polled <- err
		}()
	}
	<-time.After(200 * time.Millisecond) // the polls have to be under way; nothing outside shows it
	f.coordinator.signal(syscall.SIGTERM)
	start := time.Now()
	f.coordinator.wantExit(2*time.Second, 0)
	t.Logf("stopped in %v", time.Since(start))
	for range cap(polled) {
		if err := <-polled; err != nil {
			t.Errorf("long poll: %v", err)
		}
	}
	for _, w := range streams {
		select {
		case <-w.end:
		case <-time.After(time.Second):
			t.Error("an event stream is still open")
		}
	}
}

// SIGTERM ends an idle agent in under 2 s, connected or not.
func TestC068IdleAgentStops(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1")
	f.waitOnline("a1")
	a.signal(syscall.SIGTERM)
	a.wantExit(2*time.Second, 0)

	b := f.startAgent("b1")
	f.waitOnline("b1")
	f.coordinator.kill()
	b.signal(syscall.SIGTERM)
	b.wantExit(2*time.Second, 0)
}

// SIGTERM ends an agent within its stop grace + 2 s although its program and the
// program's children ignore all that can be ignored; the whole tree is gone, and
// the command is INTERRUPTED.
func TestC068AgentStopsItsStubbornProgram(t *testing.T) {
	t.Parallel()
	const grace = 2 * time.Second
	f := startFleet(t)
	a := f.startAgent("a1", "--stop-grace", grace.String())
	f.waitOnline("a1")
	record, mark := filepath.Join(t.TempDir(), "record"), nonce()
	const stubborn = `trap '' TERM INT HUP; echo run >>"$1"; while :; do sleep 1; done; echo "$2"`
	id := f.submit(commandBody([]string{"a1"}, `trap '' TERM INT HUP; sh -c "$3" sh "$1" "$2" & sh -c "$3" sh "$1" "$2" & while :; do sleep 1; done`,
		record, mark, stubborn))
	eventually(t, 10*time.Second, "the tree runs", func() bool { return len(linesOf(t, record)) == 2 })

	a.signal(syscall.SIGTERM)
	start := time.Now()
	a.wantExit(grace+2*time.Second, 0)
	t.Logf("stopped in %v", time.Since(start))
	if left := processesWith(mark); len(left) > 0 {
		t.Errorf("processes of the program are left: %v", left)
	}
	if got := f.targets(id)["a1"]; got.State != "INTERRUPTED" {
		f.startAgent("a1") // the word may have to wait for the next start
		if got := f.waitDone(id, 10*time.Second)["a1"]; got.State != "INTERRUPTED" {
			t.Errorf("got %+v", got)
		}
	}
}

// A program that ignores TERM does not outlive its timeout.
func TestC068TimeoutEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1", "--stop-grace", "2s")
	f.waitOnline("a1")
	mark := nonce()
	body := fmt.Sprintf(`{"type":"exec","timeout":"1s","input":{"argv":["sh","-c","trap '' TERM INT HUP; sh -c 'trap \"\" TERM INT HUP; sleep 300; echo %[1]s' & sleep 300; echo %[1]s"]},"target":{"agents":["a1"]}}`, mark)
	if got := f.waitDone(f.submit(body), 20*time.Second)["a1"]; got.State != "TIMED_OUT" {
		t.Errorf("got %+v", got)
	}
	if left := processesWith(mark); len(left) > 0 {
		t.Errorf("processes of the program are left: %v", left)
	}
}
