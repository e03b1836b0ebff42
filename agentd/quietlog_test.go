package agentd

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// written counts what a log writes.
type written struct {
	mu           sync.Mutex
	lines, bytes int
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines++
	w.bytes += len(b)
	return len(b), nil
}

// A coordinator that floods the agent with what is worth a line does not fill its
// disk with them, nor with long texts.
func TestCoordinatorCannotFloodTheLog(t *testing.T) {
	n, log := bustest.NewNet(), &written{}
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Log: slog.New(slog.NewTextHandler(log, nil))})
	c := serveRaw(t, n)
	long := strings.Repeat("x", 100<<10)
	for i := range 300 {
		c.tell(t, &musterv1.Nack{Type: "muster.v1.Heartbeat", Reason: musterv1.Nack_INVALID, Detail: long})
		c.tell(t, &musterv1.Goodbye{Reason: long, RetryAfter: durationpb.New(time.Millisecond)})
		c.tell(t, &musterv1.Registered{SessionId: fmt.Sprint(long, i), Capabilities: remembers, HeartbeatInterval: durationpb.New(time.Minute)})
	}
	c.alive(t, "after")
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.lines > 3*(quietBurst+60*quietPerSecond) || log.bytes > log.lines*1000 {
		t.Errorf("%d lines of %d bytes", log.lines, log.bytes)
	}
}

// Offers for which there is no room are answered, and not all of them logged.
func TestOffersWithoutRoomAreLoggedQuietly(t *testing.T) {
	a, log := quietApplier(t), &written{}
	a.quiet = quietly(slog.New(slog.NewTextHandler(log, nil)))
	link := newFakeLink(100_000)
	for i := range maxConfigs + 5000 {
		if err := a.onOffer(link, version(fmt.Sprint("c", i), 1, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.held) != maxConfigs || len(link.take()) != 5000 {
		t.Errorf("%d are held", len(a.held))
	}
	if log.lines == 0 || log.lines > quietBurst+60*quietPerSecond {
		t.Errorf("%d lines", log.lines)
	}
}

func TestQuietLogTellsWhatItLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := quietly(slog.New(slog.NewTextHandler(&text, nil))).With("agent", "a")
		for range quietBurst + 7 {
			log.Warn("words", "what", "x")
		}
		log.Warn("other words")
		if n := strings.Count(text.String(), "\n"); n != quietBurst+1 {
			t.Errorf("%d lines: %s", n, text.String())
		}
		time.Sleep(2 * time.Second / quietPerSecond)
		text.Reset()
		log.Warn("words", "what", strings.Repeat("x", 1000))
		if got := text.String(); !strings.Contains(got, "agent=a") || !strings.Contains(got, "left_out=7") || len(got) > 500 {
			t.Errorf("got %s", got)
		}
	})
}
