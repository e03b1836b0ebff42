package northbound

import (
	"errors"
	"fmt"
	"io"
	"iter"
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
// is in the headers, as far as the agent has told: only a final target has
// them, and only then a range can be found.
func (s *Server) getOutput(c echo.Context) error {
	request, err := readOutputRequest(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, outputTime)
	defer cancel()
	target, err := s.commands.GetTarget(ctx, &musterv1.GetTargetRequest{CommandId: request.GetCommandId(), AgentId: request.GetAgentId()})
	if err != nil {
		return err
	}
	about := target.GetStdout()
	if request.GetStream() == musterv1.Stream_STDERR {
		about = target.GetStderr()
	}
	describeOutput(c.Response().Header(), about)
	switch {
	case c.Request().Method == http.MethodHead:
		return c.NoContent(http.StatusOK)
	case request.GetFollow():
		return s.followOutput(c, request)
	}
	part, err := askedPart(c.Request(), about)
	if err != nil {
		return err
	}
	if part != nil {
		request.Offset = part.offset
	}
	chunks, err := s.commands.ReadOutput(ctx, request)
	if err != nil {
		return err
	}
	if part != nil {
		return part.send(c.Response(), pieces(chunks, part.offset))
	}
	return sendOutput(c.Response(), pieces(chunks, 0))
}

func readOutputRequest(c echo.Context) (*musterv1.ReadOutputRequest, error) {
	q, err := readQuery(c, "stream", "follow")
	if err != nil {
		return nil, err
	}
	request := &musterv1.ReadOutputRequest{CommandId: c.Param("id"), AgentId: c.Param("agent"), Stream: musterv1.Stream_STDOUT}
	if name, ok := q["stream"]; ok {
		if name, err = choice("stream", name, "stdout", "stderr"); err != nil {
			return nil, err
		}
		if name == "stderr" {
			request.Stream = musterv1.Stream_STDERR
		}
	}
	if request.Follow, err = q.flag("follow"); err != nil {
		return nil, err
	}
	if request.Follow && c.Request().Header.Get("Range") != "" {
		return nil, badParameter("follow", "follow sends all there is and will be; it does not go with a Range")
	}
	return request, nil
}

func describeOutput(header http.Header, about *musterv1.Output) {
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "none")
	if about == nil {
		return
	}
	if _, ok := extentOf(about); ok {
		header.Set("Accept-Ranges", "bytes")
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

// pieces are the data of chunks that follow each other from offset on. One with
// an error is the last.
func pieces(chunks grpc.ServerStreamingClient[musterv1.OutputChunk], offset uint32) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for {
			chunk, err := chunks.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil && chunk.GetOffset() != offset {
				err = fmt.Errorf("output has a chunk at %d, want %d", chunk.GetOffset(), offset)
			}
			if !yield(chunk.GetData(), err) || err != nil {
				return
			}
			offset += uint32(len(chunk.GetData()))
		}
	}
}

// sendOutput has no Content-Length: a program may still be writing. An error
// after the first byte cuts the connection, so a short body never looks whole.
func sendOutput(w *echo.Response, data iter.Seq2[[]byte, error]) error {
	for piece, err := range data {
		if err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return nil // the client is gone
		}
	}
	if !w.Committed {
		w.WriteHeader(http.StatusOK)
	}
	return nil
}

// followOutput sends what there is and what comes, until the target is final.
// Then the body ends; if anything else ends it, the connection is cut.
func (s *Server) followOutput(c echo.Context, request *musterv1.ReadOutputRequest) error {
	ctx, done := s.untilStop(c.Request().Context())
	defer done()
	chunks, err := s.commands.ReadOutput(ctx, request)
	if err != nil {
		return err
	}
	w := c.Response()
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that collects would hold the output back
	w.WriteHeader(http.StatusOK)              // the program may be silent for long
	// Not through Echo's Response: its Flush loses the error.
	control := http.NewResponseController(w.Writer)
	if err := control.Flush(); err != nil {
		return s.dropOutput(c, err)
	}
	for piece, err := range pieces(chunks, 0) {
		if err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return s.dropOutput(c, err)
		}
		if err := control.Flush(); err != nil {
			return s.dropOutput(c, err)
		}
	}
	return s.wasFinal(c, request)
}

// dropOutput ends followed output whose client does not take it. There is
// nobody left to tell.
func (s *Server) dropOutput(c echo.Context, err error) error {
	if isTimeout(err) {
		s.log.Warn("followed output dropped: its client does not read", "addr", c.Request().RemoteAddr)
	}
	return nil
}

// wasFinal is nil if followed output ended with its target. A coordinator that
// stops ends it, too.
func (s *Server) wasFinal(c echo.Context, request *musterv1.ReadOutputRequest) error {
	ctx, cancel := call(c, 0)
	defer cancel()
	target, err := s.commands.GetTarget(ctx, &musterv1.GetTargetRequest{CommandId: request.GetCommandId(), AgentId: request.GetAgentId()})
	if err != nil {
		return err
	}
	if target.GetState() < musterv1.Target_SUCCEEDED { // those before are not final
		return errStopping
	}
	return nil
}
