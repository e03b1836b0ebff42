package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a server, seen from outside.
type Process struct {
	Addr netip.AddrPort
	Key  string // its CURVE key in Z85, "" without

	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// Start starts a server and waits until it listens. It is killed when ctx ends.
func Start(ctx context.Context, argv ...string) (_ *Process, err error) {
	p := &Process{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("server %q: %w", argv, err)
	}
	if err := p.greet(); err != nil {
		return nil, fmt.Errorf("server %q: %w", argv, errors.Join(err, p.Stop()))
	}
	return p, nil
}

func (p *Process) greet() error {
	line, err := p.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("it does not say that it is ready: %w", err)
	}
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "ready" {
		return fmt.Errorf("it says %q", line)
	}
	if len(words) > 2 {
		p.Key = words[2]
	}
	p.Addr, err = netip.ParseAddrPort(words[1])
	return err
}

// Order gives the server an order and waits until it is done.
func (p *Process) Order(order string) error {
	if _, err := fmt.Fprintln(p.in, order); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	line, err := p.lines.ReadString('\n')
	if err == nil && line != "done\n" {
		err = errors.New(strings.TrimSpace(line))
	}
	if err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	return nil
}

// CPU is the time that the server has spent on the cores.
func (p *Process) CPU() (time.Duration, error) { return CPU(p.cmd.Process.Pid) }

// CPU is the time that a process has spent on the cores.
func CPU(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: exact, where /proc/PID/stat counts ticks
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory is the resident set of the server in bytes.
func (p *Process) Memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(b), "\nRss:")
	number, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	kilobytes, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resident set of the server: %w", err)
	}
	return kilobytes << 10, nil
}

const stopTime = 5 * time.Second

// Stop ends the server.
func (p *Process) Stop() error {
	p.in.Close()
	kill := time.AfterFunc(stopTime, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	return p.cmd.Wait()
}
