package agentd

import (
	"context"
	"log/slog"
	"sync"

	"golang.org/x/time/rate"
)

const (
	quietPerSecond = 1
	quietBurst     = 20
	quietText      = 300 // bytes of an attribute
)

// quietly is a logger for what the other side of a link can make the agent say:
// one line per message would be a way to fill a disk. Of lines with the same words
// only so many are written, and the next one tells how many were left out. It may
// be used concurrently.
func quietly(log *slog.Logger) *slog.Logger {
	return slog.New(quietHandler{log.Handler(), &quietLines{of: map[string]*quietLine{}}})
}

type quietHandler struct {
	slog.Handler
	lines *quietLines
}

// quietLines are by their words, which are fixed: there are few.
type quietLines struct {
	mu sync.Mutex
	of map[string]*quietLine
}

type quietLine struct {
	limit   *rate.Limiter
	leftOut int
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := h.lines.allow(r.Message)
	if !ok {
		return nil
	}
	short := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Value.Kind() == slog.KindString {
			a.Value = slog.StringValue(cut(a.Value.String(), quietText))
		}
		short.AddAttrs(a)
		return true
	})
	if leftOut > 0 {
		short.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.Handler.Handle(ctx, short)
}

func (l *quietLines) allow(words string) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.of[words]
	if line == nil {
		line = &quietLine{limit: rate.NewLimiter(quietPerSecond, quietBurst)}
		l.of[words] = line
	}
	if !line.limit.Allow() {
		line.leftOut++
		return 0, false
	}
	leftOut, line.leftOut = line.leftOut, 0
	return leftOut, true
}

func (h quietHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(as), h.lines}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name), h.lines}
}
