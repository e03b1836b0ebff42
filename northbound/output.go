package northbound

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// outputTime is for slow clients; one that takes nothing is cut long before.
const outputTime = 5 * time.Minute

// getOutput sends the kept bytes of one stream as they are. What they are of
// is in the headers, as far as the agent has told: only a final target has them.
func (s *Server) getOutput(c echo.Context) error {
	q, err := readQuery(c, "stream")
	if err != nil {
		return err
	}
	stream := musterv1.Stream_STDOUT
	if name, ok := q["stream"]; ok {
		if name, err = choice("stream", name, "stdout", "stderr"); err != nil {
			return err
		}
		if name == "stderr" {
			stream = musterv1.Stream_STDERR
		}
	}
	ctx, cancel := call(c, outputTime)
	defer cancel()
	target, err := s.commands.GetTarget(ctx, &musterv1.GetTargetRequest{CommandId: c.Param("id"), AgentId: c.Param("agent")})
	if err != nil {
		return err
	}
	about := target.GetStdout()
	if stream == musterv1.Stream_STDERR {
		about = target.GetStderr()
	}
	header := c.Response().Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "none")
	describeOutput(header, about)
	if c.Request().Method == http.MethodHead {
		return c.NoContent(http.StatusOK)
	}
	chunks, err := s.commands.ReadOutput(ctx, &musterv1.ReadOutputRequest{CommandId: c.Param("id"), AgentId: c.Param("agent"), Stream: stream})
	if err != nil {
		return err
	}
	return sendOutput(c, chunks)
}

func describeOutput(header http.Header, about *musterv1.Output) {
	if about == nil {
		return
	}
	header.Set("Muster-Output-Size", strconv.FormatFloat(about.GetSize(), 'f', -1, 64))
	header.Set("Muster-Output-Kept", strconv.FormatUint(uint64(about.GetKept()), 10))
	header.Set("Muster-Output-Truncated", strconv.FormatBool(about.GetTruncated()))
	if about.GetTruncated() {
		header.Set("Muster-Output-Head", strconv.FormatUint(uint64(about.GetHead()), 10))
	}
	if about.GetSha256() != "" {
		header.Set("Muster-Output-Sha256", about.GetSha256())
	}
}

// sendOutput has no Content-Length: a program may still be writing. An error
// after the first byte cuts the connection, so a short body never looks whole.
func sendOutput(c echo.Context, chunks grpc.ServerStreamingClient[musterv1.OutputChunk]) error {
	w := c.Response()
	for sent := uint32(0); ; {
		chunk, err := chunks.Recv()
		if errors.Is(err, io.EOF) {
			if !w.Committed {
				w.WriteHeader(http.StatusOK)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if chunk.GetOffset() != sent {
			return fmt.Errorf("output has a chunk at %d, want %d", chunk.GetOffset(), sent)
		}
		if _, err := w.Write(chunk.GetData()); err != nil {
			return nil // the client is gone
		}
		sent += uint32(len(chunk.GetData()))
	}
}
