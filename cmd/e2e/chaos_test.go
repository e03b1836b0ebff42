package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Commands go to a whole fleet while the coordinator and every agent are killed
// at random moments. Every target is final. The judge is a file that the
// programs write at their start and at their end: none is started twice; one
// that ended is SUCCEEDED or INTERRUPTED; one that never started is not SUCCEEDED.
func TestNothingRunsTwiceWhateverIsKilled(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	agents := make([]string, chaosAgents)
	processes := make([]*process, chaosAgents)
	for i := range agents {
		agents[i] = fmt.Sprintf("a%02d", i)
		processes[i] = f.startAgent(agents[i], "--log", "warn")
	}
	f.waitOnline(agents...)
	record := filepath.Join(t.TempDir(), "record")

	var wg sync.WaitGroup
	submitted := make(chan map[string]string, 1) // the word that a command writes → its id
	posted := make(chan struct{}, chaosCommands)
	wg.Go(func() {
		ids := map[string]string{}
		for n := range chaosCommands {
			word := fmt.Sprintf("c%04d", n)
			ids[word] = f.submitUntilAccepted(word, commandBody(agents,
				`echo "start/$2/$MUSTER_AGENT_ID" >>"$1"; sleep 0.0$(($$ % 10)); echo "end/$2/$MUSTER_AGENT_ID" >>"$1"`, record, word))
			posted <- struct{}{}
		}
		submitted <- ids
	})
	start := time.Now()
	f.killAtRandom(posted, agents, processes)
	wg.Wait()
	ids := <-submitted
	t.Logf("%d commands accepted %v after the start", len(ids), time.Since(start))
	f.waitAllDoneWithin(chaosPatience)
	t.Logf("all final after %v", time.Since(start))
	f.judge(ids, agents, ran(t, record))
}

// submitUntilAccepted posts a command again and again until it has an answer; the
// key makes it one command.
func (f *fleet) submitUntilAccepted(key, body string) (id string) {
	f.t.Helper()
	eventually(f.t, time.Minute, "a command is accepted", func() bool {
		status, answer, err := f.askWith(http.Header{"Idempotency-Key": {key}}, "POST", "/v1/commands", body)
		if err != nil || status != http.StatusAccepted {
			return false
		}
		id = idOf(f.t, answer)
		return true
	})
	return id
}

// killAtRandom spreads the kills over the time in which commands are posted: the
// coordinator a number of times, each agent twice. It returns when all of them
// run again.
func (f *fleet) killAtRandom(posted <-chan struct{}, agents []string, processes []*process) {
	f.t.Helper()
	victims := make([]int, chaosKills, chaosKills+2*len(agents))
	for i := range victims {
		victims[i] = -1 // the coordinator
	}
	for i := range agents {
		victims = append(victims, i, i)
	}
	rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for n, victim := range victims {
		for len(victims)*len(posted) < n*chaosCommands { // its share of the commands is not posted yet
			<-time.After(5 * time.Millisecond)
		}
		<-time.After(time.Duration(rand.IntN(50)) * time.Millisecond) // the moment is the case
		if victim < 0 {
			f.coordinator.kill()
			f.startCoordinator()
			continue
		}
		processes[victim].kill()
		processes[victim] = f.startAgent(agents[victim], "--log", "warn")
	}
}

func (f *fleet) judge(ids map[string]string, agents []string, times map[string]int) {
	f.t.Helper()
	states := map[string]int{}
	for word, id := range ids {
		targets := f.targets(id)
		if len(targets) != len(agents) {
			f.t.Errorf("%s has %d targets", word, len(targets))
		}
		for agent, got := range targets {
			states[got.State]++
			started, ended := times["start/"+word+"/"+agent], times["end/"+word+"/"+agent]
			switch {
			case !got.final():
				f.t.Errorf("%s on %s is not final: %+v", word, agent, got)
			case started > 1:
				f.t.Errorf("%s on %s was started %d times: %+v", word, agent, started, got)
			case ended > 0 && got.State != "SUCCEEDED" && got.State != "INTERRUPTED":
				f.t.Errorf("%s on %s ended, and is %+v", word, agent, got)
			case started == 0 && got.State == "SUCCEEDED":
				f.t.Errorf("%s on %s did not start, and is %+v", word, agent, got)
			case started == 1 && (got.State == "CANCELLED" || got.State == "EXPIRED" || got.State == "REJECTED"):
				f.t.Errorf("%s on %s was started, and is %+v", word, agent, got)
			}
		}
	}
	for line := range times {
		if word := strings.Split(line, "/")[1]; ids[word] == "" {
			f.t.Errorf("%s was written by a command that nobody knows", line)
		}
	}
	f.t.Logf("%v", states)
	if states["SUCCEEDED"] < len(ids)*len(agents)/2 {
		f.t.Errorf("only %v", states)
	}
}
