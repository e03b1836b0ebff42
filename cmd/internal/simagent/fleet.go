package simagent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Fleet is simulated agents that behave alike.
type Fleet struct {
	cfg        Config
	tally      tally
	agents     []*agent
	handshakes chan struct{} // one place for each that may be in progress
	runID      string        // of all agents, and the epoch of their journals
	result     []byte        // what every command gives …
	output     []byte        // … and writes
	stdout     *musterv1.Output
	complain   sync.Once // about a Nack: thousands may be alike

	mu      sync.Mutex
	started time.Time
	last    *Report // how it was when Run was told to end
}

// New builds a Fleet; Run starts it.
func New(cfg Config) (*Fleet, error) {
	cfg = cfg.withDefaults()
	switch {
	case cfg.Agents < 1:
		return nil, fmt.Errorf("simagent: %d agents", cfg.Agents)
	case cfg.Dial == nil:
		return nil, errors.New("simagent: no way to dial")
	}
	f := &Fleet{cfg: cfg, handshakes: make(chan struct{}, cfg.Handshakes), runID: rand.Text()}
	f.result, f.output = resultOf(cfg.ResultSize), outputOf(cfg.OutputSize)
	if sum := sha256.Sum256(f.output); len(f.output) > 0 {
		f.stdout = &musterv1.Output{Size: float64(len(f.output)), Kept: uint32(len(f.output)), Sha256: hex.EncodeToString(sum[:])}
	}
	f.agents = make([]*agent, cfg.Agents)
	for n := range f.agents {
		f.agents[n] = newAgent(f, n)
	}
	return f, nil
}

// resultOf is JSON of n bytes, or of two if n is one.
func resultOf(n int) []byte {
	if n == 0 {
		return nil
	}
	b := fill(max(n, 2), "result ")
	b[0], b[len(b)-1] = '"', '"'
	return b
}

func outputOf(n int) []byte { return fill(n, "output of a simulated command\n") }

func fill(n int, text string) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = text[i%len(text)]
	}
	return b
}

// Run keeps the agents connected until ctx ends. Then it closes their links and
// returns when everything it started has ended. It runs once.
func (f *Fleet) Run(ctx context.Context) {
	f.start()
	var running sync.WaitGroup
	for _, a := range f.agents {
		running.Go(func() { a.run(ctx) })
	}
	<-ctx.Done()
	f.freeze()
	for _, a := range f.agents {
		a.stop()
	}
	running.Wait()
}

func (f *Fleet) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = time.Now()
}

func (f *Fleet) startTime() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// capabilities are those of its agents.
func (f *Fleet) capabilities() uint64 {
	c := musterv1.AgentCapability_ACCEPTS_COMMANDS
	if f.cfg.OnConfig != nil {
		c |= musterv1.AgentCapability_ACCEPTS_PIPELINE_CONFIGS | musterv1.AgentCapability_ACCEPTS_INSTANCE_CONFIGS
	}
	return uint64(c)
}

// freeze keeps how it is now, before the links are closed.
func (f *Fleet) freeze() {
	r := f.Report()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &r
}
