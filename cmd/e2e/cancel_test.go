package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// Cancel races the end of a program, again and again: one final state, that
// fits what the program itself wrote down, told once.
func TestC041CancelRacesTheEnd(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1", "--stop-grace", "1s")
	f.waitOnline("a1")
	w := f.watch("?kinds=target")
	record := filepath.Join(t.TempDir(), "record")
	lines := map[string]string{}
	for round := range cancelRounds {
		line := fmt.Sprint("round-", round)
		id := f.submit(commandBody([]string{"a1"}, `echo "start/$2" >>"$1"; sleep 0.05; echo "end/$2" >>"$1"`, record, line))
		lines[line] = id
		<-time.After(time.Duration(rand.IntN(100)) * time.Millisecond) // the moment is the case
		status, answer, err := f.ask("POST", "/v1/commands/"+id+"/cancel", "")
		if err != nil || status != http.StatusOK && status != http.StatusConflict {
			t.Fatalf("cancel: %d %s %v", status, answer, err)
		}
		f.waitEnded(id)
	}
	times, states := ran(t, record), map[string]int{}
	for line, id := range lines {
		got := f.targets(id)["a1"]
		states[got.State]++
		switch started, ended := times["start/"+line], times["end/"+line]; got.State {
		case "SUCCEEDED":
			if started != 1 || ended != 1 {
				t.Errorf("%s: SUCCEEDED with %d starts and %d ends", line, started, ended)
			}
		case "CANCELLED":
			if started > 0 {
				t.Errorf("%s: CANCELLED, and it ran", line)
			}
		case "INTERRUPTED":
			if started > 1 {
				t.Errorf("%s: %d starts", line, started)
			}
		default:
			t.Errorf("%s: %+v", line, got)
		}
		if n := w.count(func(e event) bool { return e.Target.CommandID == id && (target{State: e.Target.State}).final() }); n > 1 {
			t.Errorf("%s: %d final states were told", line, n)
		}
	}
	t.Logf("%v", states)
}

// waitEnded waits for the end of a command, however it ends.
func (f *fleet) waitEnded(id string) (cmd command) {
	f.t.Helper()
	eventually(f.t, 20*time.Second, "command "+id+" has ended", func() bool {
		f.do("GET", "/v1/commands/"+id+"?wait=1s", "", http.StatusOK, &cmd)
		return cmd.EndTime != ""
	})
	return cmd
}

// What a cancel says: the same twice, 409 for one that has ended, 404 for one
// that never was; and the program, with its children, is really gone.
func TestC041CancelledProgramIsGone(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a := f.startAgent("a1", "--stop-grace", "1s")
	f.waitOnline("a1")
	mark := nonce()
	id := f.submit(commandBody([]string{"a1"}, `trap "" TERM; sh -c 'trap "" TERM; sleep 300; echo "$0"' "$1" & sleep 300; echo "$1"`, mark))
	eventually(t, 10*time.Second, "it runs", func() bool { return len(processesWith(mark)) >= 2 })
	for range 2 {
		var cmd command
		f.do("POST", "/v1/commands/"+id+"/cancel", `{"reason":"wrong button"}`, http.StatusOK, &cmd)
		if cmd.State != "CANCELLED" {
			t.Errorf("answered with %+v", cmd)
		}
	}
	if cmd := f.waitEnded(id); cmd.State != "CANCELLED" {
		t.Errorf("ended as %+v", cmd)
	}
	if got := f.targets(id)["a1"]; got.State != "INTERRUPTED" {
		t.Errorf("got %+v", got)
	}
	if left := processesWith(mark); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	for path, want := range map[string]int{id: http.StatusConflict, "01M8NJGX3B1NSN9645PNR87CTR": http.StatusNotFound} {
		if status, answer, err := f.ask("POST", "/v1/commands/"+path+"/cancel", ""); err != nil || status != want {
			t.Errorf("cancel of %s: %d %s %v, want %d", path, status, answer, err, want)
		}
	}

	a.kill() // a cancel reaches what waits for an agent that is away
	waiting := f.submit(commandBody([]string{"a1"}, "true"))
	f.do("POST", "/v1/commands/"+waiting+"/cancel", "", http.StatusOK, nil)
	if cmd := f.waitEnded(waiting); cmd.State != "CANCELLED" || f.targets(waiting)["a1"].State != "CANCELLED" {
		t.Errorf("ended as %+v, %+v", cmd, f.targets(waiting))
	}
}

// Unknown ids and empty lists are refused whole: nothing is stored that could
// never end.
func TestC044CommandToNobody(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	ids := []string{"a1", "a2", "a3"}
	for _, id := range ids {
		f.startAgent(id)
	}
	f.waitOnline(ids...)
	for _, targets := range [][]string{{"nobody"}, {"a1", "nobody", "a2", "no-one", "a3"}, {}} {
		status, answer, err := f.ask("POST", "/v1/commands", commandBody(targets, "true"))
		if err != nil || status != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d %s %v", targets, status, answer, err)
		}
	}
	var list struct{ Commands []json.RawMessage }
	if f.do("GET", "/v1/commands", "", http.StatusOK, &list); len(list.Commands) > 0 {
		t.Errorf("stored: %s", list.Commands)
	}
	if _, _, code := f.muster("run", "--where", `tags["env"] == "nowhere"`, "--", "true"); code != 4 {
		t.Errorf("muster run for nobody: exit %d, want 4", code)
	}
}
