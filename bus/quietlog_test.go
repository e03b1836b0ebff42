package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestQuietLog() (*quietLog, *strings.Builder) {
	var out strings.Builder
	return newQuietLog(slog.New(slog.NewTextHandler(&out, nil))), &out
}

func lines(out *strings.Builder) int { return strings.Count(out.String(), "\n") }

func TestLogOfOneCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, out := newTestQuietLog()
		for range 180 {
			q.warn("a", "refused")
			time.Sleep(time.Second)
		}
		if n := lines(out); n != 3 || strings.Count(out.String(), "left_out=59") != 2 {
			t.Errorf("%d lines in three minutes, want one a minute and how many were left out:\n%s", n, out)
		}
	})
}

func TestLogOfManyCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, out := newTestQuietLog()
		for i := range 100_000 { // as from as many addresses
			q.warn(fmt.Sprint(i), "refused")
			time.Sleep(time.Millisecond)
		}
		if n := lines(out); n < 100 || n > 111 {
			t.Errorf("%d lines in 100 s, want ten and one a second", n)
		}
		if len(q.causes) > maxCauses {
			t.Errorf("remembers %d causes", len(q.causes))
		}
		time.Sleep(2 * time.Minute)
		q.warn("new", "refused")
		if !strings.Contains(out.String()[strings.LastIndex(out.String(), "level"):], "left_out=") {
			t.Errorf("last line %q, want how many were left out", out.String()[strings.LastIndex(out.String(), "level"):])
		}
	})
}
