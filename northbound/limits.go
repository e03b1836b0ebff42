package northbound

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"google.golang.org/protobuf/proto"
)

const (
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 10 * time.Second
	writeTimeout   = 10 * time.Second // for each write: one for the whole answer would end event streams
	idleTimeout    = time.Minute
	maxHeaderBytes = 32 << 10
	maxBody        = 1 << 20
	maxBodies      = 64 << 20 // being received, all requests together: tokens are checked after the body
	maxConns       = 4096     // agents share the process's descriptors
)

// bounded gives the request its deadlines, and closes the connection behind an
// answer that left part of the body unread: net/http would read on first.
func bounded(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		hasBody := c.Request().Body != http.NoBody && c.Request().Body != nil
		out := c.Response()
		w := &pacedWriter{out.Writer, http.NewResponseController(out.Writer)}
		out.Writer = w
		w.extend() // for "100 Continue"
		if hasBody {
			_ = w.control.SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		out.Before(func() {
			if hasBody && c.Request().Body != http.NoBody {
				out.Header().Set("Connection", "close")
			}
		})
		return next(c)
	}
}

// pacedWriter gives the client writeTimeout to take each piece of the answer.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// extend has no error to handle: a writer without deadlines is a recorder.
func (w *pacedWriter) extend() { _ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout)) }

func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *pacedWriter) Write(b []byte) (written int, err error) {
	for piece := range slices.Chunk(b, 64<<10) {
		w.extend()
		n, err := w.ResponseWriter.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (w *pacedWriter) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// readMessage fills m from the JSON body, and returns that, too.
func (s *Server) readMessage(c echo.Context, m proto.Message, not notInBody) ([]byte, error) {
	body, err := s.readBody(c)
	if err != nil {
		return nil, err
	}
	return body, readJSON(body, m, not)
}

// readOptional is readMessage for a request that may come without a body; m is
// then as it was. What type a body has that is not there does not matter.
func (s *Server) readOptional(c echo.Context, m proto.Message, not notInBody) ([]byte, error) {
	if c.Request().ContentLength == 0 {
		return nil, nil
	}
	body, err := s.readMessage(c, m, not)
	if err == errEmptyBody {
		return nil, nil
	}
	return body, err
}

func (s *Server) readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if err := checkHeaders(r); err != nil {
		return nil, err
	}
	body, err := readBounded(r.Body, &s.receiving)
	if err != nil {
		return nil, err
	}
	r.Body = http.NoBody // read to its end; there net/http lifts the deadline
	if len(body) == 0 {
		return nil, errEmptyBody
	}
	return body, nil
}

var (
	errEmptyBody = refuse(http.StatusBadRequest, "EMPTY_BODY", "this needs a JSON object as its body")
	errTooLarge  = refuse(http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", fmt.Sprintf("the body is over %d bytes", maxBody))
	errBusy      = refuse(http.StatusServiceUnavailable, "BUSY", "too many bodies are being received; try again").with("Retry-After", "1")
)

// checkHeaders refuses before a byte of the body is read.
func checkHeaders(r *http.Request) error {
	for _, encoding := range r.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return refuse(http.StatusUnsupportedMediaType, "UNSUPPORTED_ENCODING", "the body must not be compressed").with("Accept-Encoding", "identity")
		}
	}
	if r.ContentLength > maxBody {
		return errTooLarge
	}
	given := r.Header.Values("Content-Type")
	if len(given) == 0 && r.ContentLength == 0 {
		return nil // there is no body that could have a type
	}
	if len(given) == 1 {
		kind, params, err := mime.ParseMediaType(given[0])
		charset, ok := params["charset"]
		if err == nil && kind == "application/json" && (!ok || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return refuse(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", "the body must be application/json in UTF-8").with("Accept", "application/json")
}

// readBounded counts what really arrives, whatever the headers claim.
func readBounded(body io.Reader, receiving *atomic.Int64) ([]byte, error) {
	var got []byte
	defer func() { receiving.Add(-int64(len(got))) }()
	chunk := make([]byte, 16<<10)
	for {
		n, err := body.Read(chunk)
		got = append(got, chunk[:n]...)
		total := receiving.Add(int64(n))
		switch {
		case len(got) > maxBody:
			return nil, errTooLarge
		case total > maxBodies:
			return nil, errBusy
		case err == io.EOF:
			return got, nil
		case isTimeout(err):
			return nil, refuse(http.StatusRequestTimeout, "BODY_TIMEOUT", fmt.Sprintf("the body did not arrive within %v", bodyTimeout))
		case err != nil:
			return nil, refuse(http.StatusBadRequest, "BODY_CUT", "the body ends early: "+err.Error())
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// onConn follows each connection from accept to its end. What is over the
// limit is closed at once: waiting would only fill the backlog.
func (s *Server) onConn(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
		switch open := s.open.Add(1); {
		case open <= maxConns:
			setUserTimeout(conn)
		case open == maxConns+1:
			s.log.Warn("too many connections; new ones are closed", "limit", maxConns)
			fallthrough
		default:
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		s.open.Add(-1)
		s.conns.Done()
	}
}
