package commands

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// resultSize is the JSON that each command gives as its result.
const resultSize = 300

func resultOf(n int) []byte { return []byte(`"` + strings.Repeat("r", n-2) + `"`) }

// fleet is simulated agents of one process.
type fleet struct {
	addr     string // of the coordinator, HOST:PORT
	size     int
	result   []byte
	runID    string
	started  *timestamppb.Timestamp
	agents   []simulated
	tally    tally
	interval atomic.Int64 // between two beats; 0: as the coordinator says
}

// newFleet is one without agents yet.
func newFleet(addr string, size int) *fleet {
	return &fleet{addr: addr, size: size, result: resultOf(resultSize), runID: rand.Text(), started: timestamppb.Now()}
}

// simulated is an agent: a [leanAgent] or a [dealerAgent].
type simulated interface {
	run(ctx context.Context) error // until ctx ends; an error says why it ended before
	rest()                         // waits anew for the next beat
}

func agentID(n int) string { return fmt.Sprintf("bench-%05d", n) }

// tally counts what the agents did.
type tally struct {
	registered, registrations, results, acks, beats, errors atomic.Int64
}

// Tally is what a fleet says of itself.
type Tally struct {
	Registered    int64 // now
	Registrations int64 // since it began
	Results       int64 // sent
	Acks          int64 // of results
	Beats         int64 // that were answered
	Errors        int64
}

func (t *tally) now() Tally {
	return Tally{t.registered.Load(), t.registrations.Load(), t.results.Load(), t.acks.Load(), t.beats.Load(), t.errors.Load()}
}

// makeLean makes lean agents.
func (f *fleet) makeLean() {
	for n := range f.size {
		f.agents = append(f.agents, newLeanAgent(f, n))
	}
}

// makeDealers makes agents on Dealers; with a file of keys they speak CURVE.
func (f *fleet) makeDealers(keys, serverKey string) error {
	security := func(int) (bus.Security, error) { return bus.Null(), nil }
	if keys != "" {
		server, err := bus.ParsePublicKey(serverKey)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(keys)
		if err != nil {
			return err
		}
		lines := strings.Fields(string(b))
		if len(lines) < f.size {
			return fmt.Errorf("%s: %d keys for %d agents", keys, len(lines), f.size)
		}
		security = func(n int) (bus.Security, error) {
			secret, err := bus.ParseSecretKey(lines[n])
			if err != nil {
				return nil, err
			}
			return bus.CurveClient(secret, server), nil
		}
	}
	for n := range f.size {
		sec, err := security(n)
		if err != nil {
			return fmt.Errorf("key of agent %d: %w", n, err)
		}
		f.agents = append(f.agents, newDealerAgent(f, n, sec))
	}
	return nil
}

// arrivals is how many agents a second begin; a restart brings them all at once.
const arrivals = 2000

func (f *fleet) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n, a := range f.agents {
		if n%(arrivals/100) == 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		running.Go(func() {
			if err := a.run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	<-ctx.Done()
}

// beat is the order to beat at another interval; the answer comes when all do.
func (f *fleet) beat(argument string) (any, error) {
	d, err := time.ParseDuration(argument)
	if err != nil {
		return nil, err
	}
	f.interval.Store(int64(d))
	for _, a := range f.agents {
		a.rest()
	}
	return nil, nil
}

// register is what an agent says first, and when it is to tell all.
func (f *fleet) register(id string, sequence uint64, journal uint32) *musterv1.Register {
	return &musterv1.Register{
		AgentId: id, RunId: f.runID, AgentType: "simulated",
		Attributes:   &musterv1.Attributes{Version: "bench", Hostname: id, Os: "linux", Arch: "amd64", Ip: "127.0.0.1", Pid: uint32(os.Getpid())},
		CommandTypes: []string{"ping"}, StartupTime: f.started,
		Capabilities: uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS),
		Journal:      &musterv1.JournalPosition{Epoch: f.runID, Seq: journal},
		SequenceNum:  sequence,
	}
}

// wantsAll says whether the coordinator asks for another Register.
func wantsAll(m *musterv1.HeartbeatAck) bool {
	return m.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0
}

// notTaken counts a Nack, and tells of the first.
func (f *fleet) notTaken(id string, m *musterv1.Nack) {
	if f.tally.errors.Add(1) == 1 {
		fmt.Fprintf(os.Stderr, "agent %s: %s not taken: %s %s\n", id, m.Type, m.Reason, m.Detail)
	}
}
