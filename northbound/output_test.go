package northbound

import (
	"context"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestOutputIsRawBytes(t *testing.T) {
	fake := working()
	fake.commands.getTarget = func(_ context.Context, r *musterv1.GetTargetRequest) (*musterv1.Target, error) {
		if r.GetAgentId() != "web-1" {
			return nil, status.Error(codes.NotFound, "no such target")
		}
		return &musterv1.Target{
			Stdout: &musterv1.Output{Size: 1 << 33, Kept: 7, Sha256: "abc", Truncated: true, Head: 4},
			Stderr: &musterv1.Output{Size: 0},
		}, nil
	}
	var cut bool
	fake.commands.readOutput = func(r *musterv1.ReadOutputRequest, s grpc.ServerStreamingServer[musterv1.OutputChunk]) error {
		if r.GetStream() == musterv1.Stream_STDERR {
			return nil
		}
		_ = s.Send(&musterv1.OutputChunk{Data: []byte("\xff\x00<b")})
		if cut {
			return status.Error(codes.Internal, "disk")
		}
		return s.Send(&musterv1.OutputChunk{Offset: 4, Data: []byte("end")})
	}
	n := serve(t, fake)
	get := func(method, path string) *reply {
		c := n.dial(t)
		c.send(t, method+" /v1/commands/c/targets/"+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
		return c.answer(t, method)
	}
	for _, query := range []string{"", "?stream=stdout"} {
		got := get("GET", "web-1/output"+query)
		if string(got.body) != "\xff\x00<bend" || got.header.Get("Content-Type") != "application/octet-stream" ||
			got.header.Get("Muster-Output-Size") != "8589934592" || got.header.Get("Muster-Output-Sha256") != "abc" || got.header.Get("Muster-Output-Kept") != "7" ||
			got.header.Get("Muster-Output-Truncated") != "true" || got.header.Get("Muster-Output-Head") != "4" {
			t.Errorf("got %q, %v", got.body, got.header)
		}
	}
	if got := get("GET", "web-1/output?stream=stderr"); got.status != 200 || len(got.body) > 0 || got.header.Get("Muster-Output-Truncated") != "false" {
		t.Errorf("got %q, %v", got.body, got.header)
	}
	if got := get("HEAD", "web-1/output"); got.status != 200 || got.header.Get("Muster-Output-Size") != "8589934592" {
		t.Errorf("got %+v", got)
	}
	get("GET", "web-2/output").want(t, 404, "NOT_FOUND")

	cut = true // after the first bytes only a broken connection tells of it
	c := n.dial(t)
	c.send(t, "GET /v1/commands/c/targets/web-1/output HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
	if got, err := io.ReadAll(c.in); err != nil || strings.HasSuffix(string(got), "0\r\n\r\n") {
		t.Errorf("half an output is answered with %q, %v", got, err)
	}
}
