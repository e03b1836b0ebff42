package commands

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sessions measures what a fleet costs that only beats, and how it comes back.
func (b *bench) sessions(ctx context.Context) error {
	if err := b.memory(ctx, false, 12); err != nil {
		return err
	}
	s, err := b.company(ctx, durable, b.cfg.Agents, onDealers)
	if err != nil {
		return err
	}
	defer s.close()
	if err := b.beats(ctx, s); err != nil {
		return err
	}
	return b.restarts(ctx, s, 3*time.Second)
}

// curveSessions measures the same, as far as encryption makes a difference.
func (b *bench) curveSessions(ctx context.Context) error {
	if err := b.memory(ctx, true, 14); err != nil {
		return err
	}
	s, err := open(ctx, b.cfg, durable, true)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.gather(ctx, b.cfg.Agents, onDealers); err != nil {
		return err
	}
	return b.restarts(ctx, s, 5*time.Second)
}

// memory reads what an idle agent takes in the coordinator.
func (b *bench) memory(ctx context.Context, curve bool, bar float64) error {
	s, err := open(ctx, b.cfg, settling, curve)
	if err != nil {
		return err
	}
	defer s.close()
	before, err := s.resident(ctx)
	if err != nil {
		return err
	}
	if err := s.gather(ctx, b.cfg.Agents, onDealers); err != nil {
		return err
	}
	if err := pause(ctx, b.cfg.Idle); err != nil {
		return err
	}
	full, err := s.coord.memory()
	if err != nil {
		return err
	}
	after, err := s.resident(ctx)
	if err != nil {
		return err
	}
	each := func(bytes int64) float64 { return float64(bytes-before) / 1024 / float64(b.cfg.Agents) }
	b.tell("memory: %.1f KB an agent, %.1f before garbage was given back", each(after), each(full))
	b.rows.add(Row{What: fmt.Sprintf("memory per idle, beating agent on the full coordinator, %d agents%s", b.cfg.Agents, withCurve(curve)),
		Measured: fmt.Sprintf("%.1f KB", each(after)), Against: fmt.Sprintf("%.1f KB with garbage", each(full)),
		Bar: fmt.Sprintf("≤ %.0f KB", bar), Reached: each(after) <= bar})
	return nil
}

func (s *site) resident(ctx context.Context) (int64, error) {
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	return s.coord.memory()
}

// beats measures the CPU time of heartbeats.
func (b *bench) beats(ctx context.Context, s *site) error {
	perBeat, _, rate, err := b.watchBeats(ctx, s, 15_000)
	if err != nil {
		return err
	}
	b.rows.add(Row{What: "CPU per heartbeat at 15,000/s", Measured: fmt.Sprintf("%.1f µs", micros(perBeat)), Against: fmt.Sprintf("at %.0f/s", rate),
		Bar: "≤ 25 µs", Reached: perBeat <= 25*time.Microsecond})
	_, share, rate, err := b.watchBeats(ctx, s, 2_000)
	if err != nil {
		return err
	}
	share *= 2000 / rate
	b.rows.add(Row{What: "share of a core at 2,000 heartbeats/s", Measured: fmt.Sprintf("%.1f %%", 100*share), Against: fmt.Sprintf("at %.0f/s", rate),
		Bar: "≤ 12 %", Reached: share <= 0.12})
	return nil
}

func (b *bench) watchBeats(ctx context.Context, s *site, perSecond int) (perBeat time.Duration, share, rate float64, err error) {
	if err := s.beat(perSecond); err != nil {
		return 0, 0, 0, err
	}
	warm := time.Duration(s.size)*time.Second/time.Duration(perSecond) + time.Second
	if err := pause(ctx, warm); err != nil {
		return 0, 0, 0, err
	}
	t0, err0 := s.tally()
	c0, err1 := s.coord.cpu()
	start := time.Now()
	err2 := pause(ctx, b.cfg.Time)
	c1, err3 := s.coord.cpu()
	t1, err4 := s.tally()
	if err := errors.Join(err0, err1, err2, err3, err4); err != nil {
		return 0, 0, 0, err
	}
	elapsed := time.Since(start).Seconds()
	n := t1.Beats - t0.Beats
	if n == 0 {
		return 0, 0, 0, errors.New("no heartbeats")
	}
	perBeat, share, rate = (c1-c0)/time.Duration(n), (c1-c0).Seconds()/elapsed, float64(n)/elapsed
	b.tell("heartbeats: %.0f/s, %.1f µs each, %.1f %% of a core", rate, micros(perBeat), 100*share)
	return perBeat, share, rate, nil
}

const reconnectWindow = 2 * time.Second // as the coordinator tells its agents

// restarts kills the coordinator and waits until the fleet is back.
func (b *bench) restarts(ctx context.Context, s *site, bar time.Duration) error {
	var times []time.Duration
	lost := 0
	for i := range b.cfg.Restarts {
		t, err := s.tally()
		if err != nil {
			return err
		}
		_, load, err := s.cpu()
		if err != nil {
			return err
		}
		s.coord.kill()
		start := time.Now()
		if err := s.start(ctx); err != nil {
			return err
		}
		ready := time.Since(start)
		n, err := s.api.offline(ctx)
		if err != nil {
			return err
		}
		lost = max(lost, n)
		if err := s.awaitAll(ctx, t.Registrations+int64(s.size), 2*time.Minute); err != nil {
			return err
		}
		times = append(times, time.Since(start))
		if n, err = s.api.offline(ctx); err != nil {
			return err
		}
		lost = max(lost, n)
		server, now, err := s.cpu()
		if err != nil {
			return err
		}
		b.tell("restart %d of %d: ready after %.2f s, all back after %.2f s, CPU %.2f + %.2f s, %d OFFLINE",
			i+1, b.cfg.Restarts, ready.Seconds(), times[i].Seconds(), server.Seconds(), (now - load).Seconds(), lost)
	}
	bar = max(bar, reconnectWindow+3*time.Second)
	took := median(times)
	b.rows.add(Row{What: fmt.Sprintf("%d agents registered again after kill -9 and restart%s", s.size, withCurve(s.curve)),
		Measured: fmt.Sprintf("%.2f s", took.Seconds()), Against: fmt.Sprintf("%d OFFLINE", lost),
		Bar: fmt.Sprintf("≤ %.0f s, 0 OFFLINE", bar.Seconds()), Reached: took <= bar && lost == 0})
	return nil
}

func withCurve(curve bool) string {
	if curve {
		return ", CURVE"
	}
	return ""
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
