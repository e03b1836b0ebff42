package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// client speaks to the REST service of one coordinator.
type client struct {
	url   string
	token string
	http  *http.Client
}

func newClient(addr string) *client {
	return &client{url: "http://" + addr, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64},
		Timeout:   longWait + 10*time.Second,
	}}
}

// readToken takes the token that the coordinator has made in its data folder.
func (c *client) readToken(data string) error {
	b, err := os.ReadFile(filepath.Join(data, tokenFile))
	c.token = strings.TrimSpace(string(b))
	return err
}

// ask makes a request and decodes the answer into value, unless that is nil.
func (c *client) ask(ctx context.Context, method, path string, body, value any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, b)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(b, value)
}

// object is JSON that is made here.
type object = map[string]any

// command is what we read of one.
type command struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Counts struct {
		Total     int `json:"total"`
		Succeeded int `json:"succeeded"`
	} `json:"counts"`
}

const longWait = 60 * time.Second // the longest that the service waits for an end

// run submits a command, waits until its last result is committed, and wants all
// to have succeeded.
func (c *client) run(ctx context.Context, cmd object) (*command, error) {
	var got command
	if err := c.ask(ctx, "POST", "/v1/commands", cmd, &got); err != nil {
		return nil, err
	}
	for got.State == "OPEN" && ctx.Err() == nil {
		if err := c.ask(ctx, "GET", "/v1/commands/"+got.ID+"?wait=60s", nil, &got); err != nil {
			return nil, err
		}
	}
	if got.State != "DONE" || got.Counts.Succeeded != got.Counts.Total {
		return nil, fmt.Errorf("command %s: %s, %d of %d succeeded", got.ID, got.State, got.Counts.Succeeded, got.Counts.Total)
	}
	return &got, nil
}

// online is how many agents are.
func (c *client) online(ctx context.Context) (n int, err error) {
	var got struct {
		Online int `json:"online"`
	}
	err = c.ask(ctx, "POST", "/v1/commands/preview?page_size=1", object{"type": "ping", "target": object{"all": true}}, &got)
	return got.Online, err
}

// offline is how many agents are OFFLINE.
func (c *client) offline(ctx context.Context) (n int, err error) {
	var got struct {
		Total int `json:"total"`
	}
	err = c.ask(ctx, "POST", "/v1/commands/preview?page_size=1", object{"type": "ping", "target": object{"where": `status == "OFFLINE"`}}, &got)
	if err != nil && strings.Contains(err.Error(), "422") {
		return 0, nil // nobody is: a command without targets
	}
	return got.Total, err
}
