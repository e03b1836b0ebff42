package commands

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

var everybody = object{"type": "ping", "target": object{"all": true}}

// spread measures one command to the whole fleet.
func (b *bench) spread(ctx context.Context) error {
	ours, err := b.company(ctx, durable, b.cfg.Agents, lean)
	if err != nil {
		return err
	}
	defer ours.close()
	memory, err := b.company(ctx, inMemory, b.cfg.Agents, lean)
	if err != nil {
		return err
	}
	defer memory.close()
	others, err := openNATS(ctx, b.cfg)
	if err != nil {
		return err
	}
	defer others.close()

	disk, ram := ours.spread(ctx, "muster"), memory.spread(ctx, "store off")
	ask := &contestant{name: "NATS", cpu: others.cpu, once: func() error { return others.requester.ask(ctx, resultOf(resultSize)) }}
	if err := b.each(ctx, "one command to all", disk, ram, ask); err != nil {
		return err
	}
	what := fmt.Sprintf("one durable command to %d agents, submit to last result committed", b.cfg.Agents)
	b.rows.compare(what+", against store off", disk, ram, 1.2)
	b.rows.compare(what+", against an undurable NATS request", disk, ask, 1.4)
	return nil
}

// company is a coordinator with so many agents.
func (b *bench) company(ctx context.Context, k kind, agents int, of breed) (*site, error) {
	s, err := open(ctx, b.cfg, k, false)
	if err != nil {
		return nil, err
	}
	if err := s.gather(ctx, agents, of); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *site) spread(ctx context.Context, name string) *contestant {
	return &contestant{name: name, cpu: s.cpu, once: func() error {
		_, err := s.api.run(ctx, everybody)
		return err
	}}
}

// results measures many small commands.
func (b *bench) results(ctx context.Context) error {
	ours, err := b.company(ctx, durable, b.cfg.Few, lean)
	if err != nil {
		return err
	}
	defer ours.close()
	memory, err := b.company(ctx, inMemory, b.cfg.Few, lean)
	if err != nil {
		return err
	}
	defer memory.close()
	disk, ram := ours.flood(ctx, "muster", b.cfg.Commands), memory.flood(ctx, "store off", b.cfg.Commands)
	if err := b.each(ctx, "results", disk, ram); err != nil {
		return err
	}
	b.rows.rate(fmt.Sprintf("durable %d-byte results/s end to end, %d agents, against store off", resultSize, b.cfg.Few),
		disk, ram, b.cfg.Commands*b.cfg.Few, 0.65)
	return nil
}

const underWay = 16 // commands of a flood

func (s *site) flood(ctx context.Context, name string, commands int) *contestant {
	return &contestant{name: name, cpu: s.cpu, once: func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(underWay)
		for range commands {
			g.Go(func() error {
				_, err := s.api.run(ctx, everybody)
				return err
			})
		}
		return g.Wait()
	}}
}
