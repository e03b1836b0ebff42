package northbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const postHead = "POST /v1/commands HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"

func TestC096OversizedBodies(t *testing.T) {
	n := serve(t, working())
	tooLarge := strings.Repeat("x", maxBody+1)
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"10 GiB claimed":                {postHead + "Content-Type: application/json\r\nContent-Length: 10737418240\r\n\r\n", 413},
		"10 GiB claimed, 100-continue":  {postHead + "Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n", 413},
		"10 GiB, unknown path":          {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10737418240\r\n\r\n", 404},
		"10 GiB, no token":              {"POST /v1/commands HTTP/1.1\r\nHost: x\r\nContent-Length: 10737418240\r\n\r\n", 401},
		"10 GiB to a GET":               {"GET /v1/agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Length: 10737418240\r\n\r\n", 200},
		"gzip":                          {postHead + "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 100\r\n\r\n", 415},
		"gzip after identity":           {postHead + "Content-Type: application/json\r\nContent-Encoding: identity, gzip\r\nContent-Length: 100\r\n\r\n", 415},
		"text, 100-continue":            {postHead + "Content-Type: text/plain\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n", 415},
		"one byte too many":             {postHead + "Content-Type: application/json\r\nContent-Length: 1048577\r\n\r\n" + tooLarge, 413},
		"one byte too many, in a chunk": {postHead + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n" + tooLarge, 413},
	} {
		t.Run(name, func(t *testing.T) {
			c, start := n.dial(t), time.Now()
			go io.WriteString(c, tc.request) // the server may close before it has read all
			res, err := http.ReadResponse(c.in, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != tc.status || !res.Close {
				t.Errorf("got %d, closing %v; want %d and the end of the connection", res.StatusCode, res.Close, tc.status)
			}
			if took := time.Since(start); took > bodyTimeout/2 {
				t.Errorf("the answer waited %v for the body", took)
			}
		})
	}
}

func TestC096EndlessBody(t *testing.T) {
	for path, status := range map[string]int{"/v1/commands": 413, "/nowhere": 404} {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, working())
			c := n.dial(t)
			c.send(t, "POST "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
			var sent atomic.Int64
			go func() {
				chunk := "1000\r\n" + strings.Repeat(" ", 0x1000) + "\r\n"
				for {
					if _, err := io.WriteString(c, chunk); err != nil {
						return
					}
					sent.Add(int64(len(chunk)))
				}
			}()
			if got := c.answer(t, "POST"); got.status != status || !got.close {
				t.Errorf("%s: %d, closing %v", path, got.status, got.close)
			}
			synctest.Wait()
			if sent.Load() > 2<<20 {
				t.Errorf("%s: %d bytes were taken", path, sent.Load())
			}
			if n.receiving.Load() != 0 {
				t.Errorf("%d bytes are still counted", n.receiving.Load())
			}
		})
	}
}

func TestC096SlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, working())
		for path, status := range map[string]int{"/v1/commands": 408, "/nowhere": 404} {
			c := n.dial(t)
			start := time.Now()
			c.send(t, "POST "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
			var writer sync.WaitGroup
			writer.Go(func() {
				for {
					if _, err := c.Write([]byte(" ")); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
			good := n.dial(t)
			good.send(t, postHead+"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			if got := good.answer(t, "POST"); got.status != 202 || time.Since(start) > time.Millisecond {
				t.Errorf("beside a slow body: %d after %v", got.status, time.Since(start))
			}
			if got := c.answer(t, "POST"); got.status != status || !got.close {
				t.Errorf("%s: %d, closing %v", path, got.status, got.close)
			}
			c.closed(t)
			if took := time.Since(start); took > bodyTimeout+time.Second {
				t.Errorf("%s: the end came after %v", path, took)
			}
			writer.Wait()
		}
	})
}

// The body's deadline must not end the call that the body is for.
func TestBodyDeadlineEndsWithTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := working()
		fake.commands.create = func(ctx context.Context, _ *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
			select {
			case <-time.After(bodyTimeout + 5*time.Second):
			case <-ctx.Done():
			}
			return &musterv1.Command{Id: "01J"}, ctx.Err()
		}
		c := serve(t, fake).dial(t)
		c.send(t, postHead+"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		if got := c.answer(t, "POST"); got.status != 202 {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestC096BodiesThatEndEarly(t *testing.T) {
	n := serve(t, working())
	c := n.dial(t)
	c.send(t, postHead+"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}}}garbage\r\n\r\n")
	if got := c.answer(t, "POST"); got.status != 202 {
		t.Errorf("the body within its length: %d", got.status)
	}
	if got := c.answer(t, "POST"); got.status != 400 || !got.close {
		t.Errorf("what follows it: %d, closing %v", got.status, got.close)
	}
	c = n.dial(t)
	c.send(t, postHead+"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n")
	c.answer(t, "POST").want(t, 400, "BODY_CUT")

	// A connection stays of use after a refusal that read all of the body.
	c = n.dial(t)
	for range 2 {
		c.send(t, postHead+"Content-Type: application/json\r\nContent-Length: 3\r\n\r\n{]}")
		c.answer(t, "POST").want(t, 400, "MALFORMED_JSON")
	}
}

// Tokens are checked behind the body, so all bodies together are bounded.
func TestBodiesTogetherAreBounded(t *testing.T) {
	s := service(t, working())
	s.receiving.Store(maxBodies - 10)
	s.do(t, "POST", "/v1/commands", `{"type":"ping"}`).want(t, 503, "BUSY")
	if got := s.receiving.Load(); got != maxBodies-10 {
		t.Errorf("%d bytes are counted, want %d", got, maxBodies-10)
	}
	if got := s.do(t, "POST", "/v1/commands", `{}`); got.status != 202 {
		t.Errorf("a body that fits: %d", got.status)
	}
}

func TestC097ContentTypes(t *testing.T) {
	created := 0
	fake := working()
	fake.commands.create = func(context.Context, *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		created++
		return &musterv1.Command{Id: "01J"}, nil
	}
	n := serve(t, fake)
	ask := func(headers, body string) *reply {
		c := n.dial(t)
		c.send(t, postHead+headers+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
		return c.answer(t, "POST")
	}
	for _, kind := range []string{"application/json", "application/json; charset=utf-8", `Application/JSON;charset="UTF-8"`, "application/json; charset=utf-8\r\nContent-Encoding: identity"} {
		created = 0
		if got := ask("Content-Type: "+kind+"\r\n", `{}`); got.status != 202 || created != 1 {
			t.Errorf("%s: %d", kind, got.status)
		}
	}
	created = 0
	for _, headers := range []string{
		"", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n", "Content-Type: multipart/form-data; boundary=x\r\n",
		"Content-Type: application/json; charset=latin1\r\n", "Content-Type: application/problem+json\r\n", "Content-Type: application/jsonx\r\n", "Content-Type: json\r\n",
		"Content-Type: application/json\r\nContent-Type: application/json\r\n", "Content-Type: application/json;charset\r\n", "Content-Type:\r\n",
	} {
		got := ask(headers, `{}`)
		got.want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
		if got.header.Get("Accept") != "application/json" {
			t.Errorf("%q: Accept %q", headers, got.header.Get("Accept"))
		}
	}
	ask("", "").want(t, 400, "EMPTY_BODY")
	ask("Content-Type: application/json\r\n", "").want(t, 400, "EMPTY_BODY")
	for _, body := range []string{"null", "[]", `"x"`, "0", "true"} {
		ask("Content-Type: application/json\r\n", body).want(t, 400, "NOT_AN_OBJECT")
	}
	ask("Content-Type: application/json\r\n", " \n").want(t, 400, "MALFORMED_JSON")
	if created != 0 {
		t.Errorf("%d commands were created", created)
	}
}

func TestC098NothingIsCreatedFromABadBody(t *testing.T) {
	fake := working()
	fake.commands.create = func(context.Context, *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		t.Error("a command was created")
		return &musterv1.Command{}, nil
	}
	s := service(t, fake)
	for _, tc := range []struct {
		body   string
		status int
		code   string
		field  string
	}{
		{`{"type":"ping","timeuot":"1s"}`, 422, "UNKNOWN_FIELD", "timeuot"},
		{`{"type":"ping","type":"exec"}`, 422, "DUPLICATE_FIELD", "type"},
		{`{"type":"ping","timeout":5}`, 422, "WRONG_TYPE", "timeout"},
		{`{"target":{"agents":["a",null]}}`, 422, "NULL", "target.agents[1]"},
		{`{"id":9007199254740993}`, 422, "SET_BY_SERVER", "id"},
		{`{"type":"ping"} {}`, 400, "TRAILING_DATA", ""},
		{`{"type":"ping"}garbage`, 400, "TRAILING_DATA", ""},
		{`{"input":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, 400, "TOO_DEEP", "*"},
		{"{\x00\"\x00t\x00", 400, "MALFORMED_JSON", ""},
		{"\xff\xfe{\x00}\x00", 400, "MALFORMED_JSON", ""},
		{"{\"name\":\"\xe9\"}", 400, "INVALID_UTF8", "name"},
	} {
		p := s.do(t, "POST", "/v1/commands", tc.body).want(t, tc.status, tc.code)
		if tc.field == "*" {
			continue
		}
		if tc.field == "" && len(p.Errors) > 0 || tc.field != "" && (len(p.Errors) != 1 || p.Errors[0].Field != tc.field) {
			t.Errorf("%.40s: errors %v, want one at %q", tc.body, p.Errors, tc.field)
		}
	}
}
