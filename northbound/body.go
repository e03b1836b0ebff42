package northbound

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/labstack/echo/v4"
	"google.golang.org/protobuf/proto"
)

const (
	maxBody    = 1 << 20
	maxContent = 4 << 20 // of a config version
	// maxContentBody holds maxContent as base64, and what is told beside it.
	maxContentBody = (maxContent+2)/3*4 + 256<<10
)

// bodyForm is a type of body that a route takes, and how long it may be.
type bodyForm struct {
	kind  string // media type
	limit int64
}

var jsonForm = bodyForm{"application/json", maxBody}

// readMessage fills m from the JSON body, and returns that, too.
func (s *Server) readMessage(c echo.Context, m proto.Message, not notInBody) ([]byte, error) {
	form, err := checkHeaders(c.Request(), jsonForm)
	if err != nil {
		return nil, err
	}
	body, err := s.readBody(c, form.limit)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return nil, errEmptyBody
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

// readBody is for a request whose headers were checked.
func (s *Server) readBody(c echo.Context, limit int64) ([]byte, error) {
	r := c.Request()
	body, err := readBounded(r.Body, limit, &s.receiving)
	if err != nil {
		return nil, err
	}
	r.Body = http.NoBody // read to its end; there net/http lifts the deadline
	return body, nil
}

var (
	errEmptyBody = refuse(http.StatusBadRequest, "EMPTY_BODY", "this needs a JSON object as its body")
	errBusy      = refuse(http.StatusServiceUnavailable, "BUSY", "too many bodies are being received; try again").with("Retry-After", "1")
)

func tooLarge(limit int64) error {
	return refuse(http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", fmt.Sprintf("the body is over %d bytes", limit))
}

// checkHeaders says which of the forms the body has, and refuses before a byte
// of it is read. A body that is not there is of the first form, unless it says
// otherwise.
func checkHeaders(r *http.Request, forms ...bodyForm) (bodyForm, error) {
	for _, encoding := range r.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return bodyForm{}, refuse(http.StatusUnsupportedMediaType, "UNSUPPORTED_ENCODING", "the body must not be compressed").with("Accept-Encoding", "identity")
		}
	}
	form, known := formOf(r, forms)
	if r.ContentLength > form.limit {
		return form, tooLarge(form.limit)
	}
	if known {
		return form, nil
	}
	var kinds []string
	for _, f := range forms {
		kinds = append(kinds, f.kind)
	}
	detail := "the body must be " + strings.Join(kinds, " or ")
	if form == jsonForm {
		detail += " in UTF-8"
	}
	return form, refuse(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", detail).with("Accept", strings.Join(kinds, ", "))
}

// formOf is the first of forms when the request's type is none of them.
func formOf(r *http.Request, forms []bodyForm) (form bodyForm, known bool) {
	given := r.Header.Values("Content-Type")
	if len(given) == 0 && r.ContentLength == 0 {
		return forms[0], true // there is no body that could have a type
	}
	if len(given) != 1 {
		return forms[0], false
	}
	kind, params, err := mime.ParseMediaType(given[0])
	charset, hasCharset := params["charset"]
	i := slices.IndexFunc(forms, func(f bodyForm) bool { return f.kind == kind })
	if err != nil || i < 0 || hasCharset && kind == jsonForm.kind && !strings.EqualFold(charset, "utf-8") {
		return forms[0], false
	}
	return forms[i], true
}

// readBounded counts what really arrives, whatever the headers claim.
func readBounded(body io.Reader, limit int64, receiving *atomic.Int64) ([]byte, error) {
	var got []byte
	defer func() { receiving.Add(-int64(len(got))) }()
	chunk := make([]byte, 16<<10)
	for {
		n, err := body.Read(chunk)
		got = append(got, chunk[:n]...)
		total := receiving.Add(int64(n))
		switch {
		case int64(len(got)) > limit:
			return nil, tooLarge(limit)
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
