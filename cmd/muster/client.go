package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// client speaks to the REST service for the subcommands.
type client struct {
	base  string // such as http://127.0.0.1:7680, without a slash at the end
	token string
	http  *http.Client
}

// problem is the body of every answer that is an error (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Field   string `json:"field"`
		Message string `json:"message"`
	} `json:"errors"`
}

func (p *problem) Error() string {
	text := cmp.Or(p.Detail, p.Title, http.StatusText(p.Status))
	for _, e := range p.Errors {
		if !strings.Contains(text, e.Message) || !strings.Contains(text, e.Field) {
			text += fmt.Sprintf("; %s: %s", e.Field, e.Message)
		}
	}
	return fmt.Sprintf("the server says: %s (%d %s)", text, p.Status, cmp.Or(p.Code, http.StatusText(p.Status)))
}

// serverFlags are those of every subcommand that asks a server.
func serverFlags(more ...cli.Flag) []cli.Flag {
	return append(more,
		&cli.StringFlag{Name: "server", Usage: "`URL` of the REST service", Value: "http://127.0.0.1:7680", EnvVars: []string{"MUSTER_SERVER"}},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` that holds the token (or set MUSTER_TOKEN to the token itself)",
			Value: filepath.Join(defaultData(), tokenFile), EnvVars: []string{"MUSTER_TOKEN_FILE"}},
	)
}

func newClient(c *cli.Context) (*client, error) {
	base, err := url.Parse(c.String("server"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, usagef("--server %q: want http://HOST:PORT", c.String("server"))
	}
	token := os.Getenv("MUSTER_TOKEN")
	if token == "" || c.IsSet("token-file") {
		b, err := os.ReadFile(c.String("token-file"))
		if err != nil {
			return nil, fmt.Errorf("no token: %w (see --token-file and MUSTER_TOKEN)", err)
		}
		token = string(b)
	}
	return newClientTo(base.String(), token), nil
}

func newClientTo(base, token string) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 30 * time.Second // a server that hangs is one that cannot be reached
	return &client{base: strings.TrimRight(base, "/"), token: strings.TrimSpace(token), http: &http.Client{Transport: transport}}
}

// do sends a request and returns the answer if it is a success; the caller
// closes its body. header may be nil.
func (c *client) do(ctx context.Context, method, path string, query url.Values, header http.Header, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.send(req)
}

func (c *client) send(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		if ue := (*url.Error)(nil); errors.As(err, &ue) {
			err = ue.Err // the address is told below
		}
		return nil, fmt.Errorf("cannot reach %s: %w", c.base, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

// isAnswer says that the server did answer, and would answer the same again.
func isAnswer(err error) bool {
	p := (*problem)(nil)
	return errors.As(err, &p) && (p.Status < 500 && p.Status != http.StatusTooManyRequests || p.Status == http.StatusInsufficientStorage)
}

// hasCode says that the server refused with the code.
func hasCode(err error, code string) bool {
	p := (*problem)(nil)
	return errors.As(err, &p) && p.Code == code
}

// isUnsent says that a request did not leave: there was nobody to connect to.
func isUnsent(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}

func readProblem(resp *http.Response) error {
	p := &problem{}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what came of it is shown
	if json.Unmarshal(b, p) != nil {
		p.Detail = strings.TrimSpace(string(b[:min(len(b), 300)]))
	}
	p.Status = resp.StatusCode
	return p
}

// json sends a request and decodes the answer into out.
func (c *client) json(ctx context.Context, method, path string, query url.Values, body, out any) error {
	return c.jsonWith(ctx, method, path, query, nil, body, out)
}

// jsonWith is json with headers.
func (c *client) jsonWith(ctx context.Context, method, path string, query url.Values, header http.Header, body, out any) error {
	resp, err := c.do(ctx, method, path, query, header, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("answer of %s to %s %s: %w", c.base, method, path, err)
	}
	return nil
}

// ask sends a request, and decodes the answer, which is also given as it came.
func ask[T any](ctx context.Context, c *client, method, path string, query url.Values, header http.Header, body any) (raw json.RawMessage, answer T, err error) {
	if err := c.jsonWith(ctx, method, path, query, header, body, &raw); err != nil {
		return nil, answer, err
	}
	err = json.Unmarshal(raw, &answer)
	return raw, answer, err
}

// remove deletes a resource; with an etag only as it was then.
func (c *client) remove(ctx context.Context, path, etag string) error {
	resp, err := c.do(ctx, "DELETE", path, nil, ifMatch(etag), nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ifMatch is the header that asks for a resource as it was with the etag ("":
// as it may be).
func ifMatch(etag string) http.Header {
	if etag == "" {
		return nil
	}
	if etag == "*" {
		return http.Header{"If-Match": {etag}}
	}
	return http.Header{"If-Match": {strconv.Quote(strings.Trim(etag, `"`))}} // as show tells it, or as the header has it
}

// list walks the pages of a collection, at most limit rows (0: all).
func (c *client) list(ctx context.Context, path, key string, limit int) ([]json.RawMessage, error) {
	return c.listWhere(ctx, path, key, nil, limit)
}

// listWhere is list with a query, which may be nil.
func (c *client) listWhere(ctx context.Context, path, key string, where url.Values, limit int) ([]json.RawMessage, error) {
	var rows []json.RawMessage
	query := url.Values{}
	maps.Copy(query, where)
	query.Set("page_size", strconv.Itoa(pageSize(limit)))
	for {
		page := map[string]json.RawMessage{}
		if err := c.json(ctx, "GET", path, query, nil, &page); err != nil {
			return nil, err
		}
		var part []json.RawMessage
		if b := page[key]; b != nil {
			if err := json.Unmarshal(b, &part); err != nil {
				return nil, fmt.Errorf("answer of %s to GET %s: field %s: %w", c.base, path, key, err)
			}
		}
		rows = append(rows, part...)
		if limit > 0 && len(rows) >= limit {
			return rows[:limit], nil
		}
		var next string
		if b := page["next_page_token"]; b != nil {
			if err := json.Unmarshal(b, &next); err != nil {
				return nil, fmt.Errorf("answer of %s to GET %s: field next_page_token: %w", c.base, path, err)
			}
		}
		if next == "" {
			return rows, nil
		}
		query.Set("page_token", next)
	}
}

// rowsOf is list with its rows decoded.
func rowsOf[T any](ctx context.Context, c *client, path, key string, limit int) ([]T, error) {
	raw, err := c.list(ctx, path, key, limit)
	if err != nil {
		return nil, err
	}
	return decodeRows[T](raw)
}

func pageSize(limit int) int {
	if limit > 0 && limit < 1000 {
		return limit
	}
	return 1000
}

func decodeRows[T any](raw []json.RawMessage) ([]T, error) {
	rows := make([]T, len(raw))
	for i, b := range raw {
		if err := json.Unmarshal(b, &rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
