package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "see it work: a coordinator, its REST service and three agents on this machine",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "once", Usage: "end after the first command instead of at Ctrl-C", EnvVars: []string{"MUSTER_ONCE"}},
		},
		Action: func(c *cli.Context) error {
			d := &demo{stdout: c.App.Writer, stderr: c.App.ErrWriter, once: c.Bool("once")}
			err := d.run(c.Context)
			switch {
			case c.Context.Err() == nil:
				return err
			case d.once:
				return &codedError{exitInterrupted, "interrupted"}
			}
			return nil // Ctrl-C is how it ends
		},
	}
}

// demo is a whole fleet on this machine. The coordinator and the REST service
// run in this process, each agent in one of its own.
type demo struct {
	stdout, stderr io.Writer
	once           bool
}

var demoAgents = []string{"demo-1", "demo-2", "demo-3"}

// demoScript is what the first command runs on every agent.
const demoScript = `echo "hello from $(uname -s), run by the agent with pid $PPID"`

// run returns when all that it started is gone, and the folder with it.
func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "muster-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	log := slog.New(slog.NewTextHandler(d.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s := &server{
		data: filepath.Join(dir, "coordinator"), south: southbound{endpoints: []string{"tcp://127.0.0.1:0"}}, listenHTTP: "127.0.0.1:0", log: log,
	}
	ready := make(chan addresses, 1)
	serving, stopServer := context.WithCancel(context.WithoutCancel(ctx)) // the server outlives the agents
	defer stopServer()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel() // without the server the show is over
		ended <- s.run(serving, func(at addresses) { ready <- at })
	}()
	select {
	case at := <-ready:
		err = d.withAgents(ctx, dir, at)
		stopServer()
		return errors.Join(err, <-ended)
	case err := <-ended:
		return err
	}
}

// withAgents starts the agents, shows what they can do, and ends them.
func (d *demo) withAgents(ctx context.Context, dir string, at addresses) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, id := range demoAgents {
		g.Go(func() error { return d.agent(ctx, dir, at, id) })
	}
	g.Go(func() error {
		defer cancel() // the show is over: the agents may go
		return d.show(ctx, at)
	})
	return g.Wait()
}

// agent runs one agent as a child process until ctx ends. The child holds the
// read end of a pipe of ours: however we end, it notices and ends too.
func (d *demo) agent(ctx context.Context, dir string, at addresses, id string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, agentChildName, "--coordinator", at.agents[0], "--data", filepath.Join(dir, id), "--id", id,
		"--tag", "demo=yes", "--allow", "exec", "--stop-grace", "2s", "--log", "error")
	cmd.Stderr = d.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us; we tell the agents
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("agent %s: %w", id, err)
	}
	left := make(chan error, 1)
	go func() { left <- cmd.Wait() }()
	select {
	case err := <-left:
		return fmt.Errorf("agent %s ended by itself: %w", id, errors.Join(err, errAgentLeft))
	case <-ctx.Done():
	}
	lifeline.Close()
	select {
	case <-left:
	case <-time.After(5 * time.Second):
		cmd.Process.Kill()
		<-left
	}
	return nil
}

var errAgentLeft = errors.New("it was to stay")

// show runs a command on all agents and says how to go on. With once it returns
// then, else when ctx ends.
func (d *demo) show(ctx context.Context, at addresses) error {
	token, err := os.ReadFile(at.tokenFile)
	if err != nil {
		return err
	}
	cl := newClientTo(at.http, string(token))
	if err := d.waitForAgents(ctx, cl); err != nil {
		return err
	}
	req := &request{Type: "exec", Name: "demo", Timeout: "30s"}
	req.Target.Agents = demoAgents
	if req.Input, err = json.Marshal(map[string][]string{"argv": {"sh", "-c", demoScript}}); err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "POST %s/v1/commands: sh -c '%s'\n", at.http, demoScript)
	r := &runner{client: cl, stdout: d.stdout, progress: newProgress(d.stderr)}
	if err := r.run(ctx, req); err != nil || d.once {
		return err
	}
	fmt.Fprintf(d.stdout, `
All of it is up until Ctrl-C. REST: %[1]s  token: %[2]s

  curl -H "Authorization: Bearer $(cat %[2]s)" %[1]s/v1/agents
  %[3]s run --server %[1]s --token-file %[2]s --all -- uptime

`, at.http, at.tokenFile, selfName())
	<-ctx.Done()
	return nil
}

// selfName is how the user may call this program again.
func selfName() string {
	if self, err := os.Executable(); err == nil && !strings.Contains(self, "go-build") {
		return self
	}
	return "go run ./cmd/muster"
}

func (d *demo) waitForAgents(ctx context.Context, cl *client) error {
	const patience = 30 * time.Second
	p := newProgress(d.stderr)
	defer p.clear()
	for start := time.Now(); time.Since(start) < patience; {
		raw, err := cl.list(ctx, "/v1/agents", "agents", 0)
		if err != nil {
			return err
		}
		agents, err := decodeRows[agent](raw)
		if err != nil {
			return err
		}
		online := 0
		for _, a := range agents {
			if a.Status == "ONLINE" {
				online++
			}
		}
		p.show(fmt.Sprintf("agents online: %d of %d", online, len(demoAgents)))
		if online == len(demoAgents) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("the agents were not online within %v", patience)
}
