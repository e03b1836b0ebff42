package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// What the subcommands ask of one resource, in the words of the REST service.

func agentPath(id, rest string) string   { return "/v1/agents/" + url.PathEscape(id) + rest }
func commandPath(id, rest string) string { return "/v1/commands/" + url.PathEscape(id) + rest }

// submit posts a command. The same key makes it the same command, however often
// it is posted.
func (c *client) submit(ctx context.Context, req *request, key string) (raw json.RawMessage, cmd command, err error) {
	return ask[command](ctx, c, "POST", "/v1/commands", nil, http.Header{"Idempotency-Key": {key}}, req)
}

// command asks for a command; with a wait the answer comes when it has ended, or
// after the wait.
func (c *client) command(ctx context.Context, id string, wait time.Duration) (raw json.RawMessage, cmd command, err error) {
	return ask[command](ctx, c, "GET", commandPath(id, ""), waitQuery(wait), nil, nil)
}

func waitQuery(wait time.Duration) url.Values {
	if wait <= 0 {
		return nil
	}
	return url.Values{"wait": {wait.String()}}
}

// targets lists those of a command, in a query that may be nil.
func (c *client) targets(ctx context.Context, id string, query url.Values) ([]json.RawMessage, []target, error) {
	raw, err := c.listWhere(ctx, commandPath(id, "/targets"), "targets", query, 0)
	if err != nil {
		return nil, nil, err
	}
	rows, err := decodeRows[target](raw)
	return raw, rows, err
}

func outputPath(id, agent string) string {
	return commandPath(id, "/targets/"+url.PathEscape(agent)+"/output")
}

// output opens what a program wrote to stdout or stderr; the caller closes it.
func (c *client) output(ctx context.Context, id, agent, stream string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, "GET", outputPath(id, agent), url.Values{"stream": {stream}}, nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// events opens the event stream behind the event with the id after ("": from now).
func (c *client) events(ctx context.Context, query url.Values, after string) (io.ReadCloser, error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if after != "" {
		header.Set("Last-Event-ID", after)
	}
	resp, err := c.do(ctx, "GET", "/v1/events", query, header, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// agents lists all of them.
func (c *client) agents(ctx context.Context) ([]agent, error) {
	return rowsOf[agent](ctx, c, "/v1/agents", "agents", 0)
}

// unknownAgents are those of ids that no agent has.
func (c *client) unknownAgents(ctx context.Context, ids []string) (unknown []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	agents, err := c.agents(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !slices.ContainsFunc(agents, func(a agent) bool { return a.ID == id }) {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}
