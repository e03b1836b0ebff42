package northbound

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"
)

var bareETag = regexp.MustCompile(`^[0-9A-Za-z_-]+$`)

// condition is what must hold for a change of a resource: it is as the client
// last saw it, it exists, or it does not.
type condition struct {
	ifMatch     string // the etag, or "*": it exists; "": anything
	ifNoneMatch bool   // it does not exist
}

// readCondition reads If-Match: one ETag as it was answered, or *, and
// If-None-Match: *. Anything else is refused: a condition that is not checked
// would let somebody's change be lost.
func readCondition(c echo.Context) (condition, error) {
	var given condition
	match, err := oneHeader(c, "If-Match")
	if err != nil {
		return given, err
	}
	none, err := oneHeader(c, "If-None-Match")
	if err != nil {
		return given, err
	}
	switch {
	case match != "" && none != "":
		return given, badCondition("If-Match and If-None-Match do not go together")
	case none != "" && none != "*":
		return given, badCondition("If-None-Match must be *")
	case match == "*":
		return condition{ifMatch: match}, nil
	case match == "":
		return condition{ifNoneMatch: none == "*"}, nil
	}
	etag, ok := unquoteETag(match)
	if !ok {
		return given, badCondition(`If-Match must be one ETag as it was answered, such as "abc", or *`)
	}
	return condition{ifMatch: etag}, nil
}

// readIfMatch is readCondition for what can only be done to what exists.
func readIfMatch(c echo.Context) (string, error) {
	given, err := readCondition(c)
	if err == nil && given.ifNoneMatch {
		err = badCondition("If-None-Match makes no sense here")
	}
	return given.ifMatch, err
}

func badCondition(detail string) error {
	return refuse(http.StatusBadRequest, "INVALID_CONDITION", detail)
}

// oneHeader is "" when the header is not there.
func oneHeader(c echo.Context, name string) (string, error) {
	given := c.Request().Header.Values(name)
	switch {
	case len(given) == 0:
		return "", nil
	case len(given) > 1 || strings.TrimSpace(given[0]) == "":
		return "", badCondition(name + " must be given once, and not be empty")
	}
	return strings.TrimSpace(given[0]), nil
}

// unquoteETag takes an ETag as its header has it, and bare, as the body has it. It
// is false for a list, a weak one and "*" in quotes, which the coordinator would
// take for any.
func unquoteETag(text string) (string, bool) {
	if bareETag.MatchString(text) {
		return text, true
	}
	inner, opened := strings.CutPrefix(text, `"`)
	inner, closed := strings.CutSuffix(inner, `"`)
	ok := opened && closed && inner != "" && inner != "*" && !strings.Contains(inner, `"`)
	for _, b := range []byte(inner) {
		ok = ok && b > ' ' && b <= '~'
	}
	return inner, ok
}

// setETag says which state of a resource the answer shows. Counts in it that
// follow the fleet may change without it.
func setETag(c echo.Context, etag string) {
	if etag != "" {
		c.Response().Header().Set("ETag", `"`+etag+`"`)
	}
}

// isCurrent says that the client has the immutable thing with the etag already.
func isCurrent(r *http.Request, etag string) bool {
	for given := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		given = strings.TrimPrefix(strings.TrimSpace(given), "W/")
		if given == "*" || given == `"`+etag+`"` {
			return true
		}
	}
	return false
}
