package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:  "events",
		Usage: "follow what changes, until Ctrl-C",
		Flags: serverFlags(
			&cli.StringSliceFlag{Name: "kinds", Usage: "only these `KINDS`: agent, command, target, group, config, config_status, rollout", EnvVars: []string{"MUSTER_KINDS"}},
			outputFlag(),
		),
		Action: asking(0, 0, func(c *cli.Context, cl *client, asJSON bool) error {
			f := &follower{client: cl, kinds: c.StringSlice("kinds"), stdout: c.App.Writer, stderr: c.App.ErrWriter, json: asJSON}
			return f.run(c.Context)
		}),
	}
}

// follower prints events, and comes back where it was when the stream breaks.
type follower struct {
	client         *client
	kinds          []string
	stdout, stderr io.Writer
	json           bool
	last           string // id of the last event seen
}

func (f *follower) run(ctx context.Context) error {
	connected := false
	for {
		err := f.stream(ctx, &connected)
		switch {
		case ctx.Err() != nil:
			return nil
		case !connected || isAnswer(err):
			return err
		}
		fmt.Fprintf(f.stderr, "muster: stream lost (%v); trying again\n", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (f *follower) stream(ctx context.Context, connected *bool) error {
	query := url.Values{}
	if len(f.kinds) > 0 {
		query.Set("kinds", strings.Join(f.kinds, ","))
	}
	body, err := f.client.events(ctx, query, f.last)
	if err != nil {
		return err
	}
	defer body.Close()
	*connected = true
	return readEvents(body, func(id string, data []byte) error {
		f.last = id
		return f.print(data)
	})
}

func (f *follower) print(data []byte) error {
	if f.json {
		_, err := fmt.Fprintf(f.stdout, "%s\n", data)
		return err
	}
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	text := summary(e)
	if e.Deleted {
		text += " deleted"
	}
	_, err := fmt.Fprintf(f.stdout, "%s  %-8s %s\n", e.Time.Local().Format("15:04:05.000"), clean(e.Kind), clean(text))
	return err
}

func summary(e event) string {
	switch {
	case e.Agent != nil:
		return e.Agent.ID + " " + e.Agent.Status
	case e.Command != nil:
		return fmt.Sprintf("%s %s %s (%s)", e.Command.ID, e.Command.Type, e.Command.State, countList(e.Command.Counts))
	case e.Target != nil:
		s := e.Target.CommandID + " " + e.Target.AgentID + " " + e.Target.State
		if e.Target.Reason != "" {
			s += ": " + oneLine(e.Target.Reason)
		}
		return s
	case e.Group != nil:
		return fmt.Sprintf("%s (%d agents)", e.Group.Name, e.Group.Size)
	case e.Config != nil:
		return fmt.Sprintf("%s version %d (%s)", e.Config.Name, e.Config.LatestVersion, bindingList(e.Config.Bindings))
	case e.ConfigStatus != nil:
		return statusSummary(*e.ConfigStatus)
	case e.Rollout != nil:
		return fmt.Sprintf("%s %s version %d %s (%s)", e.Rollout.ID, e.Rollout.Config, e.Rollout.Version, e.Rollout.State, e.Rollout.Counts)
	case e.Kind == "resync":
		return "events were missed; read the state again"
	}
	return ""
}

func statusSummary(s configStatus) string {
	text := fmt.Sprintf("%s %s version %d %s", s.AgentID, s.Name, s.Version, s.Status)
	if s.Reason != "" {
		text += ": " + oneLine(s.Reason)
	}
	return text
}

var errStreamEnded = errors.New("the server ended it")
