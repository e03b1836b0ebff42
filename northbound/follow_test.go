package northbound

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const followHead = "GET /v1/commands/c/targets/a/output?follow=1&stream=stderr HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n"

// program is a target whose output a test writes.
type program struct {
	out      chan string
	state    atomic.Int32
	watching atomic.Int64
	fail     error // how its stream ends
}

func running() (*coordinator, *program) {
	fake, p := working(), &program{out: make(chan string)}
	p.state.Store(int32(musterv1.Target_RUNNING))
	fake.commands.getTarget = func(context.Context, *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		return &musterv1.Target{State: musterv1.Target_State(p.state.Load())}, nil
	}
	fake.commands.readOutput = func(r *musterv1.ReadOutputRequest, s grpc.ServerStreamingServer[musterv1.OutputChunk]) error {
		p.watching.Add(1)
		defer p.watching.Add(-1)
		if !r.GetFollow() || r.GetStream() != musterv1.Stream_STDERR {
			return status.Error(codes.InvalidArgument, "not what was asked for")
		}
		for at := uint32(0); ; {
			select {
			case text, ok := <-p.out:
				if !ok {
					return p.fail
				}
				if err := s.Send(&musterv1.OutputChunk{Offset: at, Data: []byte(text)}); err != nil {
					return err
				}
				at += uint32(len(text))
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	}
	return fake, p
}

// following starts to follow, up to the headers.
func (n *network) following(t *testing.T) (*client, *lines) {
	t.Helper()
	c := n.dial(t)
	c.send(t, followHead)
	res, err := http.ReadResponse(c.in, nil)
	if err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/octet-stream" || res.Header.Get("Accept-Ranges") != "none" {
		t.Fatalf("got %+v, %v", res, err)
	}
	return c, &lines{body: res.Body}
}

func (l *lines) wantCut(t *testing.T) {
	t.Helper()
	if got, err := io.ReadAll(l.body); err == nil || len(got) > 0 {
		t.Errorf("the output ends with %q, %v; want a cut", got, err)
	}
}

func TestFollowedOutputComesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, p := running()
		n := serve(t, fake)
		start := time.Now()
		_, l := n.following(t)
		for range 3 {
			p.out <- "\x00 line\n"
			l.want(t, "\x00 line\n")
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the first lines took %v", took)
		}
		time.Sleep(time.Hour) // a program may be silent for long
		p.out <- "end"
		l.want(t, "end")
		p.state.Store(int32(musterv1.Target_FAILED))
		close(p.out)
		if got, err := io.ReadAll(l.body); err != nil || len(got) > 0 {
			t.Errorf("the output ends with %q, %v", got, err)
		}
	})
}

func TestFollowedOutputIsCutUnlessItsTargetIsFinal(t *testing.T) {
	for name, end := range map[string]func(*network, *program){
		"the server stops":                      func(n *network, _ *program) { n.stop() },
		"the coordinator stops":                 func(_ *network, p *program) { close(p.out) },
		"the coordinator fails":                 func(_ *network, p *program) { p.fail = status.Error(codes.Internal, "disk"); close(p.out) },
		"the coordinator forgets the last word": func(_ *network, p *program) { p.state.Store(int32(musterv1.Target_SENT)); close(p.out) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake, p := running()
				n := serve(t, fake)
				_, l := n.following(t)
				p.out <- "half a li"
				l.want(t, "half a li")
				start := time.Now()
				end(n, p)
				l.wantCut(t)
				if took := time.Since(start); took != 0 {
					t.Errorf("the cut came after %v", took)
				}
			})
		})
	}
}

// What a client does not take is bounded, and so is for how long.
func TestFollowerThatDoesNotReadIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, p := running()
		n := serve(t, fake)
		n.following(t)
		start := time.Now()
		synctest.Wait()
		for p.watching.Load() > 0 {
			select {
			case p.out <- strings.Repeat("x", 64<<10):
			case <-time.After(time.Second):
			}
		}
		if took := time.Since(start); took < writeTimeout || took > writeTimeout+5*time.Second {
			t.Errorf("dropped after %v", took)
		}
	})
}

func TestFollowerThatLeavesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, p := running()
		n := serve(t, fake)
		c, _ := n.following(t)
		synctest.Wait()
		if got := p.watching.Load(); got != 1 {
			t.Errorf("%d streams are open", got)
		}
		c.Close()
		synctest.Wait()
		if got := p.watching.Load(); got != 0 {
			t.Errorf("%d streams are open", got)
		}
	})
}

func TestFollowIsRefusedLikeTheRest(t *testing.T) {
	fake := working()
	fake.commands.getTarget = func(context.Context, *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		return nil, status.Error(codes.NotFound, "no such target")
	}
	s := service(t, fake)
	const path = "/v1/commands/c/targets/a/output"
	s.do(t, "GET", path+"?follow=1", "").want(t, 404, "NOT_FOUND")
	for _, query := range []string{"follow=", "follow=yes", "follow=2", "follow=1&follow=1", "follow"} {
		s.do(t, "GET", path+"?"+query, "").want(t, 400, "INVALID_PARAMETER")
	}
	s.do(t, "GET", path+"?follow=1", "", "Range: bytes=0-1").want(t, 400, "INVALID_PARAMETER")

	fake, p := running()
	p.state.Store(int32(musterv1.Target_LOST))
	s = service(t, fake)
	if got := s.do(t, "HEAD", path+"?follow=true", ""); got.status != 200 || len(got.body) > 0 {
		t.Errorf("HEAD: %d", got.status)
	}
	close(p.out)
	if got := s.do(t, "GET", path+"?follow=true&stream=stderr", ""); got.status != 200 || len(got.body) > 0 {
		t.Errorf("a final target without output: %d %q", got.status, got.body)
	}
}
