package commands

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/scripts/benchmark/server"
)

// child is a process of the benchmark. Parts of it take orders, a line each, and
// answer in JSON, a line each.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// start starts a program. It is killed when ctx ends.
func start(ctx context.Context, argv ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive us
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%q: %w", argv, err)
	}
	return c, nil
}

// answer is one line.
type answer struct {
	Value json.RawMessage
	Error string
}

// order gives the child an order and reads its answer into value, unless that is
// nil.
func (c *child) order(order string, value any) error {
	if _, err := fmt.Fprintln(c.in, order); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	line, err := c.lines.ReadBytes('\n')
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err == nil && value != nil {
		err = json.Unmarshal(a.Value, value)
	}
	if err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	return nil
}

// reply is the other end of order.
func reply(out io.Writer, value any, err error) error {
	a := answer{}
	if err != nil {
		a.Error = err.Error()
	} else if a.Value, err = json.Marshal(value); err != nil {
		return err
	}
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return err
}

func (c *child) cpu() (time.Duration, error) { return server.CPU(c.cmd.Process.Pid) }

// memory is the resident set in bytes.
func (c *child) memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(b), "\nRss:")
	var kilobytes int64
	if _, err := fmt.Sscan(after, &kilobytes); err != nil {
		return 0, fmt.Errorf("resident set: %w", err)
	}
	return kilobytes << 10, nil
}

// kill is the end without notice.
func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

const stopTime = 20 * time.Second

// stop ends the child as a service manager would.
func (c *child) stop() {
	c.in.Close()
	c.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(stopTime, func() { c.cmd.Process.Kill() })
	defer late.Stop()
	c.cmd.Wait() // how it ended does not matter any more
}
