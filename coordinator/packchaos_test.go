package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// packStory is agents that report at random, several times and at once, to a
// coordinator whose store fails at random, while agents are deleted, commands are
// cancelled and the coordinator starts again.
type packStory struct {
	*rig
	random *rand.Rand
	ids    []string
	peers  []*peer
	bad    atomic.Bool // the store has faults
}

func (s *packStory) chance(p float64) bool { return s.random.Float64() < p }

// told is what an agent tells of a command, each time the same.
func (s *packStory) told(agent, id string) *musterv1.Target {
	states := []musterv1.Target_State{musterv1.Target_SUCCEEDED, musterv1.Target_FAILED, musterv1.Target_INTERRUPTED}
	t := &musterv1.Target{CommandId: id, AgentId: agent, State: states[(int(agent[1])+int(id[25]))%3], Result: fmt.Appendf(nil, "%q", id+agent)}
	if agent < "a3" {
		t.Stdout = &musterv1.Output{Kept: 1}
	}
	return t
}

func (s *packStory) tell(p *peer, t *musterv1.Target) {
	link := p.current()
	if hasOutput(t) {
		_ = link.Send(&musterv1.OutputChunk{CommandId: t.CommandId, Stream: musterv1.Stream_STDOUT, Data: []byte("x")}) // a link may be gone
	}
	_ = link.Send(t)
}

func (s *packStory) step() {
	p, id := s.peers[s.random.IntN(len(s.peers))], s.ids[s.random.IntN(len(s.ids))]
	switch {
	case s.chance(0.01):
		s.c.forget(p.reg.AgentId, errDeleted, func(*agent) bool { return true })
	case s.chance(0.01):
		s.store.(*faulty.Store).CutWatches()
	case s.chance(0.005):
		_, _ = s.cmds.CancelCommand(s.t.Context(), &musterv1.ControlCommandRequest{Id: id})
	case s.chance(0.01): // what it said is on its way, or lost
		p.leave()
		p.join()
	case s.chance(0.005):
		s.restart()
	default:
		for range 1 + s.random.IntN(2) {
			s.tell(p, s.told(p.reg.AgentId, id))
		}
	}
	if s.chance(0.3) {
		time.Sleep(time.Duration(s.random.IntN(10)) * time.Millisecond)
	}
}

// restart ends the coordinator whatever it is at, and starts it with a sound store.
func (s *packStory) restart() {
	was := s.bad.Swap(false)
	s.stop()
	s.start()
	for _, p := range s.peers {
		p.leave()
		p.join()
	}
	s.bad.Store(was)
}

// judge wants every target to be what was stored first of it, wherever one looks,
// and nothing that was acknowledged to be lost.
func (s *packStory) judge() {
	s.t.Helper()
	acked, shown := map[string]bool{}, []*musterv1.Target(nil)
	for _, p := range s.peers {
		for _, id := range p.acked {
			acked[id+p.reg.AgentId] = true
		}
	}
	for _, id := range s.ids {
		cmd, first := s.command(id), map[string]*musterv1.Target{}
		err := eachPack(s.t.Context(), s.store, id, func(_ uint32, ts []*musterv1.Target) error {
			for _, t := range ts {
				if first[t.AgentId] != nil {
					s.t.Errorf("command %s: %s is stored twice, as %s and %s", id, t.AgentId, first[t.AgentId].State, t.State)
				} else {
					first[t.AgentId] = t
				}
			}
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
		var n counts
		for _, t := range s.listTargets(id, 3) {
			n[t.State]++
			late := t.Late
			if t.Late = nil; !proto.Equal(t, first[t.AgentId]) {
				s.t.Errorf("command %s: %s is shown as %v, and stored as %v", id, t.AgentId, t, first[t.AgentId])
			}
			if told := s.told(t.AgentId, id); acked[id+t.AgentId] && !proto.Equal(t, told) && !proto.Equal(late, told) && !proto.Equal(late, withoutOutput(told)) {
				s.t.Errorf("command %s: what %s told is lost, it is %v", id, t.AgentId, t)
			}
			t.Late = late
			shown = append(shown, t)
		}
		if cmd.EndTime == nil || !proto.Equal(cmd.Counts, n.proto()) {
			s.t.Errorf("command %s is %v, and its targets %v", id, cmd, n.proto())
		}
	}
	if n := len(s.c.fresh.byKey); n > 0 {
		s.t.Errorf("%d packs are kept for the watch", n)
	}
	for _, space := range Spaces {
		err := s.c.each(s.t.Context(), space.Name, "", func(kv store.KV) error {
			if strings.HasPrefix(string(kv.Key), openPrefix) {
				s.t.Errorf("row %s is left", kv.Key)
			}
			return CheckRow(space.Name, kv.Key, kv.Value)
		})
		if err != nil {
			s.t.Error(err)
		}
	}
	s.judgeExport(shown)
}

// judgeExport wants the export to have the targets that are shown.
func (s *packStory) judgeExport(shown []*musterv1.Target) {
	s.t.Helper()
	var text bytes.Buffer
	if err := Export(s.t.Context(), s.store, &text, func(err error) { s.t.Error(err) }); err != nil {
		s.t.Fatal(err)
	}
	for lines := json.NewDecoder(&text); lines.More(); {
		var line struct {
			Target struct {
				ID    string `json:"command_id"`
				Agent string `json:"agent_id"`
				State string
				Late  struct{ State string }
			}
		}
		if err := lines.Decode(&line); err != nil {
			s.t.Fatal(err)
		}
		if line.Target.ID == "" {
			continue // a command
		}
		if len(shown) == 0 {
			s.t.Fatal("more targets are exported than shown")
		}
		t, got := shown[0], line.Target
		if shown = shown[1:]; got.ID != t.CommandId || got.Agent != t.AgentId || got.State != t.State.String() || t.Late != nil && got.Late.State != t.Late.State.String() {
			s.t.Errorf("exported is %v, shown %v", got, t)
		}
	}
	if len(shown) > 0 {
		s.t.Errorf("%d targets are not exported", len(shown))
	}
}

// Whatever goes wrong, each target has one final Target, and it is shown alike.
func TestPacksOutlastFaults(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { packStoryOf(t, seed) })
		})
	}
}

func packStoryOf(t *testing.T, seed uint64) {
	s := &packStory{rig: newRig(t), random: rand.New(rand.NewPCG(seed, 1))}
	plan := faulty.Random(seed, faulty.Odds{Late: 0.5, Delay: 20 * time.Millisecond, Refuse: 0.1, Forget: 0.1, Cut: 0.3})
	s.rig.store = faulty.New(s.rig.store, func(c faulty.Call) (f faulty.Fault) {
		if s.bad.Load() {
			return plan(c)
		}
		return f
	})
	s.start()
	for i := range 8 {
		s.peers = append(s.peers, s.peer(fmt.Sprintf("a%d", i)).join())
	}
	for range 4 {
		time.Sleep(time.Minute)
		for range 3 {
			cmd := to()
			cmd.Target = &musterv1.TargetSelector{All: true}
			cmd.ExpiresIn, cmd.Timeout = lasting(time.Duration(1+s.random.IntN(3))*time.Second), lasting(time.Second)
			if s.chance(0.3) {
				cmd.Rollout = &musterv1.Rollout{Batch: "3", MaxFailures: "2"}
			}
			s.ids = append(s.ids, s.submit(cmd).Id)
		}
		s.bad.Store(true)
		for range 200 {
			s.step()
		}
		s.bad.Store(false)
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	s.judge()
	s.stop()
	s.start()
	s.judge()
	for _, p := range s.peers {
		p.leave()
	}
	s.stop()
	s.store.Close()
}
