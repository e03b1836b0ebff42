package bus_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
)

// lineCounter keeps the lines of a log.
type lineCounter struct {
	mu    sync.Mutex
	lines []string
}

func (l *lineCounter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

func (l *lineCounter) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lineCounter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

func (l *lineCounter) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[len(l.lines)-1]
}

// newLoggedStation is newStation with a log of its own.
func newLoggedStation(t *testing.T, lines *lineCounter) *station {
	s := buildLoggedStation(t, lines)
	s.serve(newNet(s))
	return s
}

func buildLoggedStation(t *testing.T, lines *lineCounter) *station {
	return buildStation(t, bus.Config{Log: lines.logger()})
}

// Strangers cannot fill the log.
func TestC005LogIsRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lineCounter
		net := newLoggedStation(t, &lines)
		for range 500 {
			net.knock(stream(t, "old-2-0")).closed(time.Second)
		}
		synctest.Wait()
		if n := lines.count(); n != 1 {
			t.Errorf("%d lines of one cause in no time, want 1", n)
		}
		time.Sleep(time.Minute)
		net.knock(stream(t, "old-2-0")).closed(time.Second)
		synctest.Wait()
		if !strings.Contains(lines.last(), "left_out=499") {
			t.Errorf("last line %q, want the number of those left out", lines.last())
		}
	})
}

// A link that its own side leaves is no failure to tell of.
func TestLeavingIsNotLogged(t *testing.T) {
	for cause, want := range map[error]bool{fmt.Errorf("stopping: %w", bus.ErrLeaving): false, errors.New("silent"): true} {
		synctest.Test(t, func(t *testing.T) {
			s := buildStation(t, bus.Config{})
			s.serve(newNet(s))
			var lines lineCounter
			mux := bus.NewMux()
			mux.Up = func(p *bus.Peer) { p.Close(cause) }
			run(t, bus.NewDealer(bus.Config{Log: lines.logger()}, mux, []string{"mem"}, bus.Null(), s.dial).Run)
			time.Sleep(time.Minute)
			if got := lines.count() > 0; got != want {
				t.Errorf("%v: told %v, want %v: %s", cause, got, want, lines.last())
			}
		})
	}
}
