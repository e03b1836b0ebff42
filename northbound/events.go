package northbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	keepAlive = 15 * time.Second
	// openTimeout bounds the wait for the coordinator's word that it watches. A
	// refusal comes within it and still gets a status of its own.
	openTimeout = 250 * time.Millisecond
)

// eventKinds may be chosen; "resync" comes in any case.
var eventKinds = []string{"agent", "command", "target", "group", "config", "config_status", "rollout"}

// streamEvents sends events as they happen (text/event-stream). The first line
// goes out when the coordinator watches: a client that sees it and then reads
// the state misses nothing. Last-Event-ID resumes; where that cannot be done
// without a gap, the first event is "resync". A client that takes nothing for
// writeTimeout is dropped.
func (s *Server) streamEvents(c echo.Context) error {
	request, err := readWatch(c)
	if err != nil {
		return err
	}
	header := c.Response().Header()
	header.Set("Content-Type", "text/event-stream")
	if c.Request().Method == http.MethodHead {
		return c.NoContent(http.StatusOK)
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	defer cancel()
	stream, err := s.events.WatchEvents(ctx, request)
	if err != nil {
		return err
	}
	f := follow(ctx, stream)
	defer f.wait()
	defer cancel()

	select {
	case <-f.open:
	case <-time.After(openTimeout):
	case <-f.ended:
		if err := f.refusal(); err != nil {
			return err
		}
	case <-s.stopping:
		return errStopping
	}
	header.Set("X-Accel-Buffering", "no") // a proxy that collects would hold events back
	// Not through Echo's Response: its Flush loses the error.
	w := eventWriter{c.Response(), http.NewResponseController(c.Response().Writer)}
	if isTimeout(w.run(f, s.stopping)) {
		s.log.Warn("event stream dropped: its client does not read", "addr", c.Request().RemoteAddr)
	}
	return nil // the answer has begun; there is nobody left to tell
}

// readWatch reads ?kinds= and Last-Event-ID. An id that cannot be one is still
// sent: the coordinator answers what it does not know with "resync".
func readWatch(c echo.Context) (*musterv1.WatchEventsRequest, error) {
	q, err := readQuery(c, "kinds")
	if err != nil {
		return nil, err
	}
	request := &musterv1.WatchEventsRequest{After: strings.ToValidUTF8(c.Request().Header.Get("Last-Event-ID"), "?")}
	if kinds, ok := q["kinds"]; ok {
		for kind := range strings.SplitSeq(kinds, ",") {
			if _, err := choice("kinds", kind, eventKinds...); err != nil {
				return nil, err
			}
			request.Kinds = append(request.Kinds, kind)
		}
	}
	return request, nil
}

// feed is the coordinator's side of a stream.
type feed struct {
	open   chan struct{} // closed when the coordinator watches
	events chan *musterv1.Event
	ended  chan struct{} // closed at the end; then err is set
	err    error
}

// follow receives until ctx or the stream ends. It holds a few events only: a
// client that falls behind is the coordinator's to cut down to a "resync".
func follow(ctx context.Context, stream grpc.ServerStreamingClient[musterv1.Event]) *feed {
	f := &feed{open: make(chan struct{}), events: make(chan *musterv1.Event, 16), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		header, err := stream.Header()
		if err != nil {
			f.err = err
			return
		}
		if header != nil { // nil: refused, and Recv says why
			close(f.open)
		}
		for {
			event, err := stream.Recv()
			if err != nil {
				f.err = err
				return
			}
			select {
			case f.events <- event:
			case <-ctx.Done():
				f.err = ctx.Err()
				return
			}
		}
	}()
	return f
}

func (f *feed) wait() { <-f.ended }

// refusal is why an ended feed was never open, nil when it was.
func (f *feed) refusal() error {
	select {
	case <-f.open:
		return nil
	default:
	}
	if errors.Is(f.err, io.EOF) {
		return errStopping // only a coordinator that stops ends a stream
	}
	return f.err
}

type eventWriter struct {
	io.Writer
	control *http.ResponseController
}

// run writes until the feed ends, the server stops or a write fails.
func (w *eventWriter) run(f *feed, stopping <-chan struct{}) error {
	if err := w.write("retry: 1000\n\n", true); err != nil {
		return err
	}
	beat := time.NewTicker(keepAlive)
	defer beat.Stop()
	for {
		var err error
		select {
		case event := <-f.events:
			err = w.write(eventText(event), len(f.events) == 0)
		case <-beat.C:
			err = w.write(": keep-alive\n\n", true)
		case <-f.ended:
			return w.drain(f)
		case <-stopping:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// drain sends what came before the feed ended.
func (w *eventWriter) drain(f *feed) error {
	for {
		select {
		case event := <-f.events:
			if err := w.write(eventText(event), len(f.events) == 0); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (w *eventWriter) write(text string, flush bool) error {
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if !flush {
		return nil
	}
	return w.control.Flush()
}

// eventText is one event on the wire. In its JSON a line break can only be
// white space (of a raw value); there it would break the line off.
func eventText(event *musterv1.Event) string {
	data := writeJSON(event)
	for _, lineBreak := range []string{"\n", "\r"} {
		data = bytes.ReplaceAll(data, []byte(lineBreak), []byte(" "))
	}
	return fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", oneLine(event.GetId()), oneLine(event.GetKind()), data)
}

func oneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ").Replace(text)
}
