package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
)

// preview is what the server says of a command that was not sent.
type preview struct {
	Total     int               `json:"total"`
	Online    int               `json:"online"`
	Fleet     int               `json:"fleet"`
	Targets   []json.RawMessage `json:"targets"`
	NextToken string            `json:"next_page_token,omitempty"`
}

// preview shows who would get a command.
func (r *runner) preview(ctx context.Context, req *request) error {
	p, err := r.client.preview(ctx, req)
	if err != nil {
		return noTargets(err)
	}
	if r.json {
		return printJSON(r.stdout, p)
	}
	targets, err := decodeRows[target](p.Targets)
	if err != nil {
		return err
	}
	rows := make([][]string, len(targets))
	for i, t := range targets {
		rows[i] = []string{t.AgentID, t.Reason}
	}
	printTable(r.stdout, []string{"AGENT", "STATUS"}, rows)
	fmt.Fprintf(r.stdout, "%d of %d agents, %d of them online; nothing was sent\n", p.Total, p.Fleet, p.Online)
	return nil
}

// checkShare asks for --yes when a command is for more than half of a fleet
// that is not small.
func (r *runner) checkShare(ctx context.Context, req *request) error {
	if r.yes || len(req.Target.Agents) > 0 && len(req.Target.Agents) <= smallFleet/2 {
		return nil
	}
	p, err := r.client.previewPage(ctx, req, url.Values{"page_size": {"1"}})
	if err != nil {
		return err
	}
	return largeShare(r.yes, p.Total, p.Fleet)
}

func (c *client) previewPage(ctx context.Context, req *request, query url.Values) (p preview, err error) {
	err = c.json(ctx, "POST", "/v1/commands/preview", query, req, &p)
	return p, err
}

// preview walks all pages.
func (c *client) preview(ctx context.Context, req *request) (all preview, err error) {
	query := url.Values{"page_size": {"1000"}}
	for {
		p, err := c.previewPage(ctx, req, query)
		if err != nil {
			return all, err
		}
		all.Total, all.Online, all.Fleet = p.Total, p.Online, p.Fleet
		all.Targets = append(all.Targets, p.Targets...)
		if p.NextToken == "" {
			return all, nil
		}
		query.Set("page_token", p.NextToken)
	}
}
