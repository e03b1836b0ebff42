package simagent

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// station is a coordinator played by the test: it answers Register and beats as
// long as it is not told otherwise, and keeps what it hears of one agent.
type station struct {
	t     *testing.T
	net   *bustest.Net
	fleet *Fleet

	mu         sync.Mutex
	mute       bool                 // nothing is answered
	answer     proto.Message        // to Register, in place of Registered
	registered *musterv1.Registered // the answer to Register
	flags      uint32               // of the next HeartbeatAck
	peer       *bus.Peer
	registers  []*musterv1.Register
	beats      []uint64
	targets    []*musterv1.Target
	output     []byte
	statuses   []*musterv1.ConfigStatus
	fetches    []*musterv1.FetchConfig
	content    []byte // what is fetched; nil: nothing comes
}

// stationTest runs one agent against a station, in a bubble that wants every
// goroutine to have ended.
func stationTest(t *testing.T, cfg Config, body func(t *testing.T, s *station)) {
	synctest.Test(t, func(t *testing.T) {
		s := &station{t: t, net: bustest.NewNet(), registered: &musterv1.Registered{HeartbeatInterval: durationpb.New(10 * time.Second)}}
		mux := bus.NewMux()
		bus.Handle(mux, s.onRegister)
		bus.Handle(mux, s.onHeartbeat)
		bus.Handle(mux, s.onTarget)
		bus.Handle(mux, s.onChunk)
		bus.Handle(mux, s.onFeedback)
		bus.Handle(mux, s.onFetch)
		cfg.Agents, cfg.Log = 1, warnings(t)
		cfg.Dial = func(ctx context.Context, _ int) (net.Conn, error) { return s.net.Dial(ctx, "mem://") }
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.fleet = f
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { bus.NewRouter(bus.Config{}, mux).Serve(ctx, s.net, bus.Null()) })
		running.Go(func() { f.Run(ctx) })
		synctest.Wait()
		body(t, s)
		cancel()
		running.Wait()
	})
}

func (s *station) onRegister(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Register) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registers = append(s.registers, m)
	s.peer = p
	switch {
	case s.mute:
		return nil
	case s.answer != nil:
		return p.Send(s.answer)
	}
	p.Promote()
	return p.Send(s.registered)
}

func (s *station) onHeartbeat(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Heartbeat) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats = append(s.beats, m.SequenceNum)
	if s.mute {
		return nil
	}
	ack := &musterv1.HeartbeatAck{SequenceNum: m.SequenceNum, Flags: s.flags}
	s.flags = 0
	return p.Send(ack)
}

func (s *station) onTarget(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = append(s.targets, m)
	return nil
}

func (s *station) onChunk(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.OutputChunk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Offset == 0 {
		s.output = nil
	}
	s.output = append(s.output, m.Data...)
	return nil
}

// set changes how the station behaves.
func (s *station) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// say sends messages, and returns when the agent has done what it does about them.
func (s *station) say(ms ...proto.Message) {
	s.t.Helper()
	s.mu.Lock()
	p := s.peer
	s.mu.Unlock()
	for _, m := range ms {
		if err := p.Send(m); err != nil {
			s.t.Error(err)
		}
	}
	synctest.Wait()
}

// came is how often the agent registered.
func (s *station) came() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.registers)
}

// cut breaks the link, and returns when there is a new one.
func (s *station) cut() {
	s.net.Cut()
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// wantTold checks the states that came since it was called last.
func (s *station) wantTold(want ...musterv1.Target_State) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []musterv1.Target_State
	for _, m := range s.targets {
		got = append(got, m.State)
	}
	s.targets = nil
	if !slices.Equal(got, want) {
		s.t.Errorf("told %v, want %v", got, want)
	}
}

func (s *station) wantReport(ok func(r Report) bool) {
	s.t.Helper()
	synctest.Wait()
	if r := s.fleet.Report(); !ok(r) {
		s.t.Errorf("got %+v", r)
	}
}
