package northbound

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 10 * time.Second
	writeTimeout   = 10 * time.Second // for each write: one for the whole answer would end event streams
	idleTimeout    = time.Minute
	maxHeaderBytes = 32 << 10
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
