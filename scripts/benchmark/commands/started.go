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
	disk, err := openDisk(s.data)
	if err != nil {
		return err
	}
	defer disk.close()
	var times, syncs []time.Duration
	const warm = 20
	for i := range b.cfg.Starts + warm {
		took, err := s.startProgram(ctx)
		if err != nil {
			return err
		}
		sync, err := disk.sync()
		if err != nil {
			return err
		}
		if i >= warm {
			times, syncs = append(times, took), append(syncs, sync)
		}
	}
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

// disk is a file beside the store's, to see what the disk takes for a sync. It is
// asked once after each start, for it is as fast as when it was idle before: one
// sync after the other takes less than half of that.
type disk struct {
	file *os.File
	next int64
}

func openDisk(dir string) (*disk, error) {
	f, err := os.CreateTemp(dir, "sync-")
	return &disk{file: f}, err
}

func (d *disk) close() {
	d.file.Close()
	os.Remove(d.file.Name())
}

// sync writes a page, and returns what its sync takes.
func (d *disk) sync() (time.Duration, error) {
	if _, err := d.file.WriteAt(make([]byte, 4096), d.next%16*4096); err != nil {
		return 0, err
	}
	d.next++
	start := time.Now()
	err := unix.Fdatasync(int(d.file.Fd()))
	return time.Since(start), err
}
