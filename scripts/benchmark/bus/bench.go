package bus

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// Config says what is measured.
type Config struct {
	Program string // this one; it holds most of the servers
	Libzmq  string // libzmq's server

	Peers   []int
	Windows []int
	Runs    int
	Time    time.Duration // of a run
	Warm    time.Duration // before it
	Only    []string      // names of servers (all)
	Profile string        // folder for the CPU profiles of servers in Go (none)
}

// Run measures every server in every round, and tells progress of it.
func Run(ctx context.Context, cfg Config, progress io.Writer) (*Results, error) {
	r := newResults(cfg)
	for _, peers := range cfg.Peers {
		for round := range cfg.Runs {
			fmt.Fprintf(progress, "%d peers, round %d of %d\n", peers, round+1, cfg.Runs)
			order := contestants(cfg)
			if round%2 == 1 {
				slices.Reverse(order) // nobody always comes after the same neighbour
			}
			for _, c := range order {
				if err := r.try(ctx, c, peers); err != nil {
					return nil, fmt.Errorf("%s, %d peers: %w", c.name, peers, err)
				}
			}
		}
	}
	return r, nil
}

// try measures c once with all windows.
func (r *Results) try(ctx context.Context, c contestant, peers int) error {
	t, err := begin(ctx, r.cfg, c, peers)
	if err != nil {
		return err
	}
	defer t.end()
	r.addIdle(c, peers, t.idle)
	for _, window := range r.cfg.Windows {
		s, err := t.measure(ctx, window)
		if err != nil {
			return fmt.Errorf("window %d: %w", window, err)
		}
		r.add(c, peers, window, s)
	}
	return nil
}
