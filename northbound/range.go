package northbound

import (
	"fmt"
	"iter"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// extent says which bytes of a stream are kept: the first head and the last
// tail of size. What lies between is the gap.
type extent struct{ size, head, tail int64 }

// extentOf is false when the agent has not told yet, or told what cannot be.
func extentOf(about *musterv1.Output) (extent, bool) {
	size, kept, head := about.GetSize(), int64(about.GetKept()), int64(about.GetHead())
	switch {
	case about == nil, size != math.Trunc(size), !(size >= float64(kept)), size > 1<<53:
		return extent{}, false
	case int64(size) == kept:
		return extent{size: kept, head: kept}, true
	case !about.GetTruncated() || head > kept:
		return extent{}, false
	}
	return extent{size: int64(size), head: head, tail: kept - head}, true
}

func (e extent) String() string {
	head, tail := fmt.Sprintf("0-%d", e.head-1), fmt.Sprintf("%d-%d", e.size-e.tail, e.size-1)
	switch {
	case e.head == 0 && e.tail == 0:
		return "nothing"
	case e.tail == 0:
		return head
	case e.head == 0:
		return tail
	}
	return head + " and " + tail
}

// part is a range of a stream, both ends included, and where its kept bytes
// start.
type part struct {
	extent
	first, last int64
	offset      uint32
}

// askedPart is nil when all is asked for. That is also the answer to a range in
// a unit that we do not know, to If-Range, as there are no validators, and
// while nobody knows where the kept bytes were.
func askedPart(r *http.Request, about *musterv1.Output) (*part, error) {
	unit, spec, _ := strings.Cut(strings.Join(r.Header.Values("Range"), ","), "=")
	e, ok := extentOf(about)
	if !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes") || r.Header.Get("If-Range") != "" {
		return nil, nil
	}
	return e.part(strings.TrimSpace(spec))
}

var rangeForm = regexp.MustCompile(`^(\d+)-(\d*)$|^-(\d+)$`)

// part finds a range such as "0-499", "500-" or "-500", the last 500 bytes.
func (e extent) part(spec string) (*part, error) {
	match := rangeForm.FindStringSubmatch(spec)
	switch {
	case strings.Contains(spec, ","):
		return nil, e.refuse("INVALID_RANGE", "one range at a time is answered")
	case match == nil:
		return nil, e.refuse("INVALID_RANGE", `the range must be such as "bytes=0-499", "bytes=500-" or "bytes=-500"`)
	}
	p := &part{extent: e, last: e.size - 1}
	if from, to, suffix := match[1], match[2], match[3]; suffix != "" {
		p.first = e.size - min(position(suffix), e.size)
	} else {
		p.first = position(from)
		if to != "" && position(to) < p.first {
			return nil, e.refuse("INVALID_RANGE", "the range ends before it starts")
		}
		if to != "" {
			p.last = min(p.last, position(to))
		}
	}
	switch {
	case p.first >= e.size:
		return nil, e.refuse("RANGE_NOT_SATISFIABLE", fmt.Sprintf("the range has none of the %d bytes of the output", e.size))
	case p.last < e.head:
		p.offset = uint32(p.first)
	case p.first >= e.size-e.tail:
		p.offset = uint32(e.head + p.first - (e.size - e.tail))
	default:
		return nil, e.refuse("RANGE_NOT_KEPT", fmt.Sprintf("bytes %d-%d of %d are not kept; kept: %v", e.head, e.size-e.tail-1, e.size, e))
	}
	return p, nil
}

// position is a number of digits; a range may end far behind the end.
func position(digits string) int64 {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

func (e extent) refuse(code, detail string) error {
	return refuse(http.StatusRequestedRangeNotSatisfiable, code, detail).with("Content-Range", fmt.Sprintf("bytes */%d", e.size))
}

// send answers with the part, whose data, and perhaps more, come piece by piece.
func (p *part) send(w *echo.Response, data iter.Seq2[[]byte, error]) error {
	left := p.last - p.first + 1
	for piece, err := range data {
		if err != nil {
			return err
		}
		if !w.Committed {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", p.first, p.last, p.size))
			w.Header().Set("Content-Length", strconv.FormatInt(left, 10))
			w.WriteHeader(http.StatusPartialContent)
		}
		piece = piece[:min(int64(len(piece)), left)]
		if _, err := w.Write(piece); err != nil {
			return nil // the client is gone
		}
		if left -= int64(len(piece)); left == 0 {
			return nil
		}
	}
	return fmt.Errorf("output ends %d bytes before the end of the range", left)
}
