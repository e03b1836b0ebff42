package northbound

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// problem is an answer that refuses (RFC 9457). Code is stable; scripts branch
// on it. Title and Detail are for people.
type problem struct {
	Type   string         `json:"type"`
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Code   string         `json:"code"`
	Detail string         `json:"detail,omitempty"`
	Errors []fieldProblem `json:"errors,omitempty"`

	header http.Header
	cause  error // what only the log may know
}

type fieldProblem struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func refuse(status int, code, detail string) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail, header: http.Header{}}
}

// with sets a header of the answer.
func (p *problem) with(key, value string) *problem {
	p.header.Set(key, value)
	return p
}

// on names the field that is at fault.
func (p *problem) on(field string) *problem {
	p.Errors = append(p.Errors, fieldProblem{field, p.Detail})
	return p
}

var (
	errNotFound = refuse(http.StatusNotFound, "NOT_FOUND", "there is nothing at this path")
	errStopping = refuse(http.StatusServiceUnavailable, "STOPPING", "the server is stopping").with("Retry-After", "1")
)

// statuses says how each gRPC code is answered. What is not here is ours to
// explain: 500 and a log line.
var statuses = map[codes.Code]struct {
	status int
	code   string
}{
	codes.InvalidArgument:    {http.StatusBadRequest, "INVALID_ARGUMENT"}, // 422 with field violations in a body
	codes.OutOfRange:         {http.StatusBadRequest, "OUT_OF_RANGE"},
	codes.NotFound:           {http.StatusNotFound, "NOT_FOUND"},
	codes.AlreadyExists:      {http.StatusConflict, "ALREADY_EXISTS"},
	codes.Aborted:            {http.StatusConflict, "CONFLICT"},
	codes.FailedPrecondition: {http.StatusConflict, "FAILED_PRECONDITION"},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"},
	codes.Unauthenticated:    {http.StatusUnauthorized, "UNAUTHENTICATED"},
	codes.PermissionDenied:   {http.StatusForbidden, "PERMISSION_DENIED"},
	codes.Unavailable:        {http.StatusServiceUnavailable, "UNAVAILABLE"},
	codes.Canceled:           {http.StatusServiceUnavailable, "CANCELLED"}, // by the coordinator: a client that gave up is gone
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"},
}

// reasons are those of ErrorInfo that have a status of their own.
var reasons = map[string]int{
	"DISK_FULL":         http.StatusInsufficientStorage,
	"ETAG_MISMATCH":     http.StatusPreconditionFailed,
	"CONTENT_TOO_LARGE": http.StatusRequestEntityTooLarge,
	// Trying again later does not help against these.
	"TOO_MANY_GROUPS":   http.StatusConflict,
	"TOO_MANY_CONFIGS":  http.StatusConflict,
	"TOO_MANY_VERSIONS": http.StatusConflict,
}

// problemOf turns any error of a handler into the answer. It is the only place
// that knows which error is which status.
func problemOf(err error) *problem {
	var p *problem
	var f *fault
	var he *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &f):
		return problemOfFault(f)
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return errNotFound
	case errors.As(err, &he) && he.Code == http.StatusMethodNotAllowed:
		return refuse(he.Code, "METHOD_NOT_ALLOWED", "this path does not know the method; see Allow")
	}
	if st, ok := status.FromError(err); ok {
		return problemOfStatus(st)
	}
	return internal(err)
}

func internal(err error) *problem {
	p := refuse(http.StatusInternalServerError, "INTERNAL", "internal error")
	p.cause = err
	return p
}

// problemOfFault: text that is not one JSON object is a bad request; an object
// with something wrong inside is content that cannot be processed.
func problemOfFault(f *fault) *problem {
	status := http.StatusUnprocessableEntity
	switch f.Code {
	case "MALFORMED_JSON", "INVALID_UTF8", "TRAILING_DATA", "TOO_DEEP", "NOT_AN_OBJECT":
		status = http.StatusBadRequest
	}
	p := refuse(status, f.Code, f.Error())
	if f.Path != "" {
		p.Errors = []fieldProblem{{f.Path, f.Message}}
	}
	return p
}

func problemOfStatus(st *status.Status) *problem {
	known, ok := statuses[st.Code()]
	if !ok {
		return internal(st.Err())
	}
	p := refuse(known.status, known.code, st.Message())
	var reason string
	retry := time.Second
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				p.Errors = append(p.Errors, fieldProblem{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	if st.Code() == codes.Unavailable && reason == "" {
		// The text is gRPC's own and may tell how the coordinator is reached.
		p.Detail, p.cause = "the coordinator cannot be reached; try again", st.Err()
	}
	if reason != "" {
		p.Code = reason
	}
	if s, ok := reasons[reason]; ok {
		p.Status, p.Title = s, http.StatusText(s)
	}
	switch p.Status {
	case http.StatusUnauthorized:
		p.with("WWW-Authenticate", challenge)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		seconds := int((retry + time.Second - 1) / time.Second)
		p.with("Retry-After", strconv.Itoa(max(1, seconds)))
	}
	return p
}

// inBody says that err is about a request message whose field holds the body,
// or which is the body if field is "": paths become those of the body, and
// violations its content. Those of parameters stay what they are.
func inBody(err error, field string, parameters ...string) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	p := problemOfStatus(st)
	for i := range p.Errors {
		p.Errors[i].Field = strings.TrimPrefix(p.Errors[i].Field, field+".")
	}
	if p.Status == http.StatusBadRequest && st.Code() == codes.InvalidArgument && len(p.Errors) > 0 && !slices.Contains(parameters, p.Errors[0].Field) {
		p.Status = http.StatusUnprocessableEntity
		p.Title = http.StatusText(p.Status)
	}
	return p
}

// answerError is Echo's error handler.
func (s *Server) answerError(err error, c echo.Context) {
	r := c.Request()
	p := problemOf(err)
	if p.cause != nil && r.Context().Err() == nil {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", p.cause)
	}
	if c.Response().Committed {
		// Half an answer is out: only a cut connection tells the client so.
		panic(http.ErrAbortHandler)
	}
	header := c.Response().Header()
	header.Del("Content-Length") // a handler may have told of what then failed
	header.Del("ETag")
	for key, values := range p.header {
		header[key] = values
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and an int: cannot happen
	}
	header.Set("Content-Type", "application/problem+json") // Blob keeps what a handler has set
	// A client that is gone cannot be told.
	_ = c.Blob(p.Status, "application/problem+json", body)
}
