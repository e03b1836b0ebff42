package commands

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const realAgent = "real"

// starts measures how long it takes until a real agent has started a program,
// with a fleet that idles beside it.
func (b *bench) starts(ctx context.Context) error {
	s, err := b.company(ctx, durable, b.cfg.Few, onDealers)
	if err != nil {
		return err
	}
	defer s.close()
	agent, err := start(ctx, b.cfg.Agentd, "--coordinator", "tcp://"+s.agents, "--data", filepath.Join(s.data, "agent"),
		"--id", realAgent, "--allow", "exec", "--log", "warn")
	if err != nil {
		return err
	}
	defer agent.stop()
	err = poll(ctx, time.Minute, func() (bool, error) {
		n, err := s.api.online(ctx)
		return n == b.cfg.Few+1, err
	})
	if err != nil {
		return fmt.Errorf("the real agent does not come: %w", err)
	}
	syncs, err := fsyncs(s.data, b.cfg.Starts/2+1)
	if err != nil {
		return err
	}
	var times []time.Duration
	const warm = 20
	for i := range b.cfg.Starts + warm {
		d, err := s.startProgram(ctx)
		if err != nil {
			return err
		}
		if i >= warm {
			times = append(times, d)
		}
	}
	more, err := fsyncs(s.data, b.cfg.Starts/2+1)
	if err != nil {
		return err
	}
	syncs = append(syncs, more...)
	what := fmt.Sprintf("submit → program started (/bin/true), %d idle agents beside it, ", b.cfg.Few)
	b.rows.start(what+"p50", quantile(times, 0.5), quantile(syncs, 0.5), 1200*time.Microsecond)
	b.rows.start(what+"p99", quantile(times, 0.99), quantile(syncs, 0.99), 4*time.Millisecond)
	return nil
}

// startProgram runs a program and returns how long after the submit it was
// started, by the clock that coordinator, agent and we share.
func (s *site) startProgram(ctx context.Context) (time.Duration, error) {
	submitted := time.Now()
	cmd, err := s.api.run(ctx, object{"type": "exec", "input": object{"argv": []string{"/bin/true"}}, "target": object{"agents": []string{realAgent}}})
	if err != nil {
		return 0, err
	}
	var target struct {
		StartTime time.Time `json:"start_time"`
	}
	err = s.api.ask(ctx, "GET", "/v1/commands/"+cmd.ID+"/targets/"+realAgent, nil, &target)
	return target.StartTime.Sub(submitted.Round(0)), err
}

// fsyncs measures what the disk takes for a page and a sync.
func fsyncs(dir string, n int) (times []time.Duration, err error) {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	for i := range n {
		if _, err := f.WriteAt(page, int64(i%16)*4096); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
	}
	return times, nil
}
