package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// What the subcommands ask of configs, in the words of the REST service.

func (c *client) config(ctx context.Context, name string) (f config, err error) {
	err = c.json(ctx, "GET", configPath(name, ""), nil, nil, &f)
	return f, err
}

// findConfig is nil when there is none of that name.
func (c *client) findConfig(ctx context.Context, name string) (*config, error) {
	f, err := c.config(ctx, name)
	if isMissing(err) {
		return nil, nil
	}
	return &f, err
}

func isMissing(err error) bool {
	p := (*problem)(nil)
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// putConfig makes a config that is not there (etag ""), or replaces it as it was.
func (c *client) putConfig(ctx context.Context, body configBody, etag string) (raw json.RawMessage, err error) {
	return c.putConfigIn(ctx, nil, body, etag)
}

// tryConfig says what putConfig would be refused for.
func (c *client) tryConfig(ctx context.Context, body configBody, etag string) error {
	_, err := c.putConfigIn(ctx, url.Values{"dry_run": {"1"}}, body, etag)
	return err
}

func (c *client) putConfigIn(ctx context.Context, query url.Values, body configBody, etag string) (raw json.RawMessage, err error) {
	path := configPath(body.Name, "")
	body.Name = "" // the path has it
	header := http.Header{"If-None-Match": {"*"}}
	if etag != "" {
		header = ifMatch(etag)
	}
	err = c.jsonWith(ctx, "PUT", path, query, header, body, &raw)
	return raw, err
}

func (c *client) version(ctx context.Context, config string, n int) (v configVersion, err error) {
	err = c.json(ctx, "GET", configPath(config, fmt.Sprintf("/versions/%d", n)), nil, nil, &v)
	return v, err
}

// content reads all of a version's content.
func (c *client) content(ctx context.Context, config string, n int) ([]byte, error) {
	resp, err := c.do(ctx, "GET", contentPath(config, n), nil, nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// addVersion makes the next version, unless the latest is the same. base is the
// version that must be the latest (0: any).
func (c *client) addVersion(ctx context.Context, config string, body versionBody, base int) (raw json.RawMessage, v configVersion, err error) {
	query := url.Values{"unless_same": {"1"}}
	if base > 0 {
		query.Set("base_version", strconv.Itoa(base))
	}
	return ask[configVersion](ctx, c, "POST", configPath(config, "/versions"), query, nil, body)
}

// tryVersion says what addVersion would be refused for. A config that is not
// there yet would be of the kind.
func (c *client) tryVersion(ctx context.Context, config, kind string, body versionBody) error {
	var answer json.RawMessage
	return c.json(ctx, "POST", configPath(config, "/versions"), url.Values{"dry_run": {"1"}, "kind": {kind}}, body, &answer)
}

// agentStates tells of each agent that is not simply ONLINE what it is.
func (c *client) agentStates(ctx context.Context) (map[string]string, error) {
	agents, err := c.agents(ctx)
	states := map[string]string{}
	for _, a := range agents {
		if state := a.state(); state != "ONLINE" {
			states[a.ID] = state
		}
	}
	return states, err
}

// previewConfig walks all pages.
func (c *client) previewConfig(ctx context.Context, body configBody) (all configPreview, err error) {
	query := url.Values{"page_size": {"1000"}}
	for {
		var p configPreview
		if err := c.json(ctx, "POST", "/v1/configs/preview", query, body, &p); err != nil {
			return all, err
		}
		p.Changes = append(all.Changes, p.Changes...)
		if all = p; p.NextToken == "" {
			return all, nil
		}
		query.Set("page_token", p.NextToken)
	}
}
