package northbound

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// ranged is a service whose only output is described by about; keeps are the
// bytes that the coordinator has, sent in pieces of three.
func ranged(t *testing.T, about *musterv1.Output, keeps []byte) *network {
	fake := working()
	fake.commands.getTarget = func(context.Context, *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		return &musterv1.Target{State: musterv1.Target_SUCCEEDED, Stdout: about}, nil
	}
	fake.commands.readOutput = func(r *musterv1.ReadOutputRequest, s grpc.ServerStreamingServer[musterv1.OutputChunk]) error {
		for at := int(r.GetOffset()); at < len(keeps); at += 3 {
			if err := s.Send(&musterv1.OutputChunk{Offset: uint32(at), Data: keeps[at:min(at+3, len(keeps))]}); err != nil {
				return err
			}
		}
		return nil
	}
	return serve(t, fake)
}

func (n *network) output(t *testing.T, method string, headers ...string) *reply {
	t.Helper()
	c := n.dial(t)
	defer c.Close()
	c.send(t, method+" /v1/commands/c/targets/a/output HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"+strings.Join(append(headers, ""), "\r\n")+"\r\n")
	return c.answer(t, method)
}

func TestRangesOfTruncatedOutput(t *testing.T) {
	// 0123456789abcdefghij, of which 4567…f are the gap
	n := ranged(t, &musterv1.Output{Size: 20, Kept: 8, Truncated: true, Head: 4}, []byte("0123ghij"))
	for spec, want := range map[string]string{
		"bytes=0-0": "0 0-0", "bytes=0-3": "0123 0-3", "bytes=2-3": "23 2-3", "bytes=16-": "ghij 16-19", "bytes=19-": "j 19-19", "bytes=17-18": "hi 17-18",
		"bytes=16-16": "g 16-16", "bytes=-4": "ghij 16-19", "bytes=-1": "j 19-19", "bytes=18-99999999999999999999999": "ij 18-19", "Bytes= 1-2": "12 1-2",
	} {
		got := n.output(t, "GET", "Range: "+spec)
		if have := string(got.body) + " " + strings.TrimSuffix(strings.TrimPrefix(got.header.Get("Content-Range"), "bytes "), "/20"); got.status != 206 || have != want {
			t.Errorf("%s: %d %q, want %q", spec, got.status, have, want)
		}
		if got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) || got.header.Get("Accept-Ranges") != "bytes" || got.header.Get("Muster-Output-Size") != "20" {
			t.Errorf("%s: %v", spec, got.header)
		}
	}
	for _, spec := range []string{"bytes=0-", "bytes=0-4", "bytes=3-4", "bytes=4-15", "bytes=15-16", "bytes=15-", "bytes=-5", "bytes=-20", "bytes=-1000", "bytes=0-19", "bytes=7-7"} {
		got := n.output(t, "GET", "Range: "+spec)
		p := got.want(t, 416, "RANGE_NOT_KEPT")
		if p.Detail != "bytes 4-15 of 20 are not kept; kept: 0-3 and 16-19" || got.header.Get("Content-Range") != "bytes */20" {
			t.Errorf("%s: %q, %v", spec, p.Detail, got.header)
		}
	}
	for _, spec := range []string{"bytes=20-", "bytes=20-20", "bytes=99999999999999999999999-", "bytes=-0"} {
		if got := n.output(t, "GET", "Range: "+spec); got.want(t, 416, "RANGE_NOT_SATISFIABLE") == nil || got.header.Get("Content-Range") != "bytes */20" {
			t.Errorf("%s: %v", spec, got.header)
		}
	}
	for _, spec := range []string{"bytes=", "bytes=-", "bytes=3-2", "bytes=a-b", "bytes=1-2x", "bytes=+1-2", "bytes=1--2", "bytes=0x1-2", "bytes=1", "bytes=0-1,2-3", "bytes=0-1,", "bytes==0-1", "bytes=1 - 2"} {
		if got := n.output(t, "GET", "Range: "+spec); got.want(t, 416, "INVALID_RANGE") == nil || got.header.Get("Content-Range") != "bytes */20" {
			t.Errorf("%s: %v", spec, got.header)
		}
	}
	n.output(t, "GET", "Range: bytes=0-1", "Range: bytes=2-3").want(t, 416, "INVALID_RANGE")

	// Where RFC 9110 has a range ignored, all that is kept is the answer.
	for _, headers := range [][]string{{}, {"Range:"}, {"Range: lines=0-1"}, {"Range: 0-1"}, {"Range: bytes=0-1", `If-Range: "x"`}} {
		if got := n.output(t, "GET", headers...); got.status != 200 || string(got.body) != "0123ghij" || got.header.Get("Content-Range") != "" {
			t.Errorf("%q: %d %q", headers, got.status, got.body)
		}
	}
	if got := n.output(t, "HEAD", "Range: bytes=5-6"); got.status != 200 || got.header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}
}

func TestRangesOfOtherOutput(t *testing.T) {
	for name, tc := range map[string]struct {
		about *musterv1.Output
		keeps string
		spec  string
		want  string // body or code
	}{
		"whole":                  {&musterv1.Output{Size: 6, Kept: 6}, "abcdef", "1-4", "bcde"},
		"whole, to its end":      {&musterv1.Output{Size: 6, Kept: 6}, "abcdef", "0-", "abcdef"},
		"empty":                  {&musterv1.Output{}, "", "0-", "RANGE_NOT_SATISFIABLE"},
		"empty, its end":         {&musterv1.Output{}, "", "-1", "RANGE_NOT_SATISFIABLE"},
		"cut without a gap":      {&musterv1.Output{Size: 6, Kept: 6, Truncated: true, Head: 3}, "abcdef", "1-4", "bcde"},
		"nothing kept":           {&musterv1.Output{Size: 6, Truncated: true}, "", "0-0", "RANGE_NOT_KEPT"},
		"tail only":              {&musterv1.Output{Size: 6, Kept: 2, Truncated: true}, "ef", "4-", "ef"},
		"tail only, the rest":    {&musterv1.Output{Size: 6, Kept: 2, Truncated: true}, "ef", "0-3", "RANGE_NOT_KEPT"},
		"head only":              {&musterv1.Output{Size: 6, Kept: 2, Truncated: true, Head: 2}, "ab", "0-1", "ab"},
		"head only, the rest":    {&musterv1.Output{Size: 6, Kept: 2, Truncated: true, Head: 2}, "ab", "-1", "RANGE_NOT_KEPT"},
		"huge":                   {&musterv1.Output{Size: 1 << 53, Kept: 2, Truncated: true, Head: 1}, "az", "9007199254740991-", "z"},
		"not told yet":           {nil, "abc", "1-1", "abc"},
		"more kept than written": {&musterv1.Output{Size: 2, Kept: 3}, "abc", "1-1", "abc"},
		"lost without a word":    {&musterv1.Output{Size: 9, Kept: 3}, "abc", "1-1", "abc"},
		"more head than kept":    {&musterv1.Output{Size: 9, Kept: 3, Truncated: true, Head: 4}, "abc", "1-1", "abc"},
		"half a byte":            {&musterv1.Output{Size: 3.5, Kept: 3, Truncated: true, Head: 3}, "abc", "1-1", "abc"},
		"no number":              {&musterv1.Output{Size: math.NaN(), Kept: 3}, "abc", "1-1", "abc"},
		"endless":                {&musterv1.Output{Size: math.Inf(1), Kept: 3, Truncated: true, Head: 3}, "abc", "1-1", "abc"},
		"less than nothing":      {&musterv1.Output{Size: -1}, "abc", "1-1", "abc"},
		"fewer bytes than told":  {&musterv1.Output{Size: 6, Kept: 6}, "", "1-4", "INTERNAL"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ranged(t, tc.about, []byte(tc.keeps)).output(t, "GET", "Range: bytes="+tc.spec)
			if strings.ToUpper(tc.want) == tc.want && tc.want != "" {
				if p := got.problem(t); p.Code != tc.want || got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
					t.Errorf("got %d %s", got.status, got.body)
				}
			} else if string(got.body) != tc.want {
				t.Errorf("got %d %q", got.status, got.body)
			}
		})
	}
}

// A range that breaks off is cut, never filled up or called whole.
func TestRangeWithoutItsEnd(t *testing.T) {
	n := ranged(t, &musterv1.Output{Size: 9, Kept: 9}, []byte("abcde"))
	c := n.dial(t)
	c.send(t, "GET /v1/commands/c/targets/a/output HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nRange: bytes=1-7\r\n\r\n")
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return // cut before the first byte was on its way
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("got %d %q as a whole", res.StatusCode, got)
	}
}

// Every range of every truncated output is its bytes or the one refusal.
func TestRangesAreThoseOfTheOriginal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stream := rapid.SliceOfN(rapid.Byte(), 1, 60).Draw(rt, "stream")
		size := len(stream)
		head := rapid.IntRange(0, size).Draw(rt, "head")
		tail := rapid.IntRange(0, size-head).Draw(rt, "tail")
		keeps := append(append([]byte{}, stream[:head]...), stream[size-tail:]...)
		about := &musterv1.Output{Size: float64(size), Kept: uint32(len(keeps)), Head: uint32(head), Truncated: len(keeps) < size}
		e, ok := extentOf(proto.CloneOf(about))
		if !ok {
			rt.Fatalf("%v is not understood", about)
		}
		first := rapid.IntRange(0, size-1).Draw(rt, "first")
		last := rapid.IntRange(first, size-1).Draw(rt, "last")
		p, err := e.part(fmt.Sprintf("%d-%d", first, last))
		isKept := last < head || first >= size-tail || len(keeps) == size
		if (err == nil) != isKept {
			rt.Fatalf("%d-%d of %v: %v", first, last, about, err)
		}
		if err == nil && string(keeps[p.offset:int64(p.offset)+p.last-p.first+1]) != string(stream[first:last+1]) {
			rt.Fatalf("%d-%d of %v are at %d", first, last, about, p.offset)
		}
	})
}
