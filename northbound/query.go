package northbound

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	"google.golang.org/protobuf/reflect/protoreflect"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	maxPageSize = 1000
	maxWait     = time.Minute
)

// query holds the parameters of a request, each known and given once.
type query map[string]string

func badParameter(name, format string, args ...any) *problem {
	return refuse(http.StatusBadRequest, "INVALID_PARAMETER", fmt.Sprintf(format, args...)).on(name)
}

// readQuery refuses what it does not know: a misspelt filter that is ignored
// would answer another question.
func readQuery(c echo.Context, known ...string) (query, error) {
	values, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "MALFORMED_QUERY", "the query is not correctly encoded: "+strings.ToValidUTF8(err.Error(), "?"))
	}
	q := query{}
	for name, given := range values {
		switch {
		case !slices.Contains(known, name):
			shown := strings.ToValidUTF8(name, "?")
			near := ""
			if n := nearest(name, known); n != "" {
				near = fmt.Sprintf("; did you mean %q?", n)
			}
			return nil, refuse(http.StatusBadRequest, "UNKNOWN_PARAMETER", fmt.Sprintf("there is no parameter %q here%s", shown, near)).on(shown)
		case len(given) > 1:
			return nil, badParameter(name, "%s is given %d times", name, len(given))
		case given[0] == "":
			return nil, badParameter(name, "%s is empty; leave it out instead", name)
		case !utf8.ValidString(given[0]):
			return nil, badParameter(name, "%s is not UTF-8", name)
		}
		q[name] = given[0]
	}
	return q, nil
}

// page is which part of a list is asked for, with the list's other parameters.
type page struct {
	query
	size  uint32
	token string
}

// readPage is readQuery for lists.
func readPage(c echo.Context, known ...string) (page, error) {
	q, err := readQuery(c, append(known, "page_size", "page_token")...)
	if err != nil {
		return page{}, err
	}
	size, err := q.pageSize()
	return page{q, size, q["page_token"]}, err
}

// pageSize is 0 when it is not given: the coordinator has the default.
func (q query) pageSize() (uint32, error) {
	text, ok := q["page_size"]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, badParameter("page_size", "page_size must be a whole number from 1 to %d", maxPageSize)
	}
	return min(uint32(n), maxPageSize), nil
}

func (q query) wait() (time.Duration, error) {
	text, ok := q["wait"]
	if !ok {
		return 0, nil
	}
	d, err := parseDuration(text)
	if err != nil {
		return 0, badParameter("wait", "wait: %v", err)
	}
	return min(d, maxWait), nil
}

// order is unspecified when it is not given: the coordinator has the default.
func (q query) order() (musterv1.Order, error) {
	text, ok := q["order"]
	if !ok {
		return musterv1.Order_ORDER_UNSPECIFIED, nil
	}
	if text == "asc" {
		return musterv1.Order_ASC, nil
	}
	_, err := choice("order", text, "asc", "desc")
	return musterv1.Order_DESC, err
}

// valuesOf reads a list of enum values such as "FAILED,LOST".
func valuesOf[E interface {
	~int32
	protoreflect.Enum
	comparable
}](q query, name string) (values []E, err error) {
	text, ok := q[name]
	if !ok {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := valueOf(name, word, E(0).Descriptor())
		if err != nil {
			return nil, err
		}
		if v := E(n); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values, nil
}

// flag is false when it is not given.
func (q query) flag(name string) (bool, error) {
	text, ok := q[name]
	if !ok {
		return false, nil
	}
	text, err := choice(name, text, "1", "0", "true", "false")
	return text == "1" || text == "true", err
}

// valueOf is the value of an enum that a parameter names as JSON does.
func valueOf(name, value string, ed protoreflect.EnumDescriptor) (protoreflect.EnumNumber, error) {
	if _, err := choice(name, value, valueNames(ed)...); err != nil {
		return 0, err
	}
	return ed.Values().ByName(protoreflect.Name(value)).Number(), nil
}

// choice is the parameter's value, which must be one of allowed.
func choice(name, value string, allowed ...string) (string, error) {
	if !slices.Contains(allowed, value) {
		return "", badParameter(name, "%s must be one of %s", name, strings.Join(allowed, ", "))
	}
	return value, nil
}
