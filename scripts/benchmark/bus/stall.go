package bus

import (
	"context"
	"fmt"
	"io"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
	"github.com/musterhq/muster/scripts/benchmark/load"
	"github.com/musterhq/muster/scripts/benchmark/report"
	"github.com/musterhq/muster/scripts/benchmark/server"
)

// StallConfig says how a peer that stops reading is measured.
type StallConfig struct {
	Program string
	Peers   int // with the one that stops
	Pairs   int
	Time    time.Duration
	Warm    time.Duration
}

// Stall is the p99 of the others' round trips in each pair.
type Stall struct {
	peers         int
	without, with []time.Duration
}

const (
	mostFactor  = 1.3
	smallBuffer = 4 << 10 // of the socket that is not read
)

// RunStall measures pairs, with and without a peer that does not read while
// commands are pushed to it.
func RunStall(ctx context.Context, cfg StallConfig, progress io.Writer) (*Stall, error) {
	s := &Stall{peers: cfg.Peers}
	for pair := range cfg.Pairs {
		fmt.Fprintf(progress, "pair %d of %d\n", pair+1, cfg.Pairs)
		for i := range 2 {
			stopped := (pair+i)%2 == 1 // who is first alternates
			p99, err := stallOnce(ctx, cfg, stopped)
			if err != nil {
				return nil, err
			}
			if stopped {
				s.with = append(s.with, p99)
			} else {
				s.without = append(s.without, p99)
			}
		}
	}
	return s, nil
}

// stallOnce is one run. All peers are there in either case; one has nothing to say
// or, if it is stopped, asks for commands and reads none.
func stallOnce(ctx context.Context, cfg StallConfig, stopped bool) (p99 time.Duration, err error) {
	process, err := server.Start(ctx, cfg.Program, "serve", "muster")
	if err != nil {
		return 0, err
	}
	defer process.Stop()
	chunk, err := hundredBytes()
	if err != nil {
		return 0, err
	}
	one, err := load.Connect(ctx, load.Config{Addr: process.Addr, Peers: 1, Message: chunk, ReceiveBuffer: smallBuffer})
	if err != nil {
		return 0, err
	}
	defer one.Close()
	others, err := load.Connect(ctx, load.Config{Addr: process.Addr, Peers: cfg.Peers - 1, Message: chunk, Timing: true})
	if err != nil {
		return 0, err
	}
	defer others.Close()
	if stopped {
		beat, err := message(&musterv1.Heartbeat{}, 0)
		if err != nil {
			return 0, err
		}
		if err := one.Say(beat); err != nil {
			return 0, err
		}
		if err := process.Order("await-full"); err != nil {
			return 0, err
		}
	}
	if err := runFor(ctx, others, cfg.Warm); err != nil {
		return 0, err
	}
	others.Forget()
	if err := runFor(ctx, others, cfg.Time); err != nil {
		return 0, err
	}
	return others.Quantile(0.99), nil
}

func runFor(ctx context.Context, f *load.Fleet, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f.Run(ctx, 1)
}

// Table is a table of the pairs, and whether the median of their factors is good.
func (s *Stall) Table() (t *report.Table, good bool) {
	t = report.NewTable("pair", "p99 without, ms", "p99 with, ms", "factor")
	var factors []float64
	for i := range s.with {
		factors = append(factors, float64(s.with[i])/float64(s.without[i]))
		t.Add(fmt.Sprint(i+1), milliseconds(s.without[i]), milliseconds(s.with[i]), fmt.Sprintf("%.2f", factors[i]))
	}
	factor := median(factors)
	t.Add(fmt.Sprintf("median (bar: ≤ %.1f)", mostFactor), milliseconds(median(s.without)), milliseconds(median(s.with)), fmt.Sprintf("%.2f", factor))
	return t, factor <= mostFactor
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
