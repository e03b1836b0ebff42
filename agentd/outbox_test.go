package agentd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// inOutbox runs fn beside an outbox in a bubble.
func inOutbox(t *testing.T, fn func(o *outbox)) {
	t.Helper()
	inEndingOutbox(t, func(o *outbox, _, _ func()) { fn(o) })
}

// inEndingOutbox gives fn stop, which tells run to end, and wait, until it has.
func inEndingOutbox(t *testing.T, fn func(o *outbox, stop, wait func())) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		files, err := openOutputs(dir)
		if err != nil {
			t.Fatal(err)
		}
		o := newOutbox(files, testLog(t), newMetrics(nil))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { o.run(ctx) })
		fn(o, cancel, wg.Wait)
		cancel()
		wg.Wait()
	})
}

func final(id string) *musterv1.Target {
	return &musterv1.Target{CommandId: id, State: musterv1.Target_SUCCEEDED}
}

// ids of the final Targets among what was sent.
func ids(ms []proto.Message) (list []string) {
	for _, m := range ms {
		if t, ok := m.(*musterv1.Target); ok && t.State >= musterv1.Target_SUCCEEDED {
			list = append(list, t.CommandId)
		}
	}
	return list
}

func wantIDs(t *testing.T, l *fakeLink, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := ids(l.take()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

func TestOutboxSendsOnEachLinkUntilAcked(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		o.tell(final("a"))
		o.tell(final("b"))
		first := newFakeLink(100)
		o.use(first)
		wantIDs(t, first, "a", "b")
		o.forget("a")
		o.tell(final("c"))
		wantIDs(t, first, "c")
		first.Close(context.Canceled)
		synctest.Wait()
		o.tell(final("d"))
		second := newFakeLink(100)
		o.use(second)
		wantIDs(t, second, "b", "c", "d")
		for _, id := range []string{"b", "c", "d"} {
			o.forget(id)
		}
		time.Sleep(time.Hour)
		wantIDs(t, second)
	})
}

func TestC048NeverAcked(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(1000)
		o.use(link)
		o.tell(final("a"))
		var at []time.Duration
		began := time.Now()
		for time.Since(began) < 20*time.Minute {
			synctest.Wait()
			if len(ids(link.take())) > 0 {
				at = append(at, time.Since(began).Round(time.Second))
			}
			time.Sleep(time.Second)
		}
		// Gaps of 30 s, 1 min, 2, 4, 5, 5 …
		want := []time.Duration{0, 30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second, 750 * time.Second, 1050 * time.Second}
		if fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("sent at %v, want %v", at, want)
		}
		// The hand-over to one that acks.
		link.Close(context.Canceled)
		next := newFakeLink(1000)
		o.use(next)
		wantIDs(t, next, "a")
		o.forget("a")
		time.Sleep(time.Hour)
		wantIDs(t, next)
	})
}

func TestOutboxWaitsForRoom(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(3)
		for i := range 10 {
			o.tell(final(fmt.Sprint(i)))
		}
		o.use(link)
		synctest.Wait()
		// News of a command goes before what has waited.
		o.tell(&musterv1.Target{CommandId: "x", State: musterv1.Target_RUNNING})
		time.Sleep(statusHold)
		wantIDs(t, link, "0", "1", "2")
		synctest.Wait()
		sent := link.take()
		if first, ok := sent[0].(*musterv1.Target); !ok || first.CommandId != "x" || fmt.Sprint(ids(sent)) != "[3 4]" {
			t.Errorf("sent %v", sent)
		}
		wantIDs(t, link, "5", "6", "7")
		wantIDs(t, link, "8", "9")
	})
}

func TestOutboxLimitsWhatIsInFlight(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(10_000)
		for i := range inFlight + 50 {
			o.tell(final(fmt.Sprintf("%04d", i)))
		}
		o.use(link)
		synctest.Wait()
		if n := len(ids(link.take())); n != inFlight {
			t.Errorf("%d sent without an ack", n)
		}
		o.forget("0000")
		o.forget("0001")
		wantIDs(t, link, fmt.Sprintf("%04d", inFlight), fmt.Sprintf("%04d", inFlight+1))
	})
}

func TestOutboxSendsOutputFirst(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		stdout, stderr := bytes.Repeat([]byte("o"), chunkSize*2+10), []byte("why")
		a := final("a")
		if err := o.outputs.save(a, plugin.Output{Size: int64(len(stdout)), Kept: stdout}, plugin.Output{Size: 3, Kept: stderr}); err != nil {
			t.Fatal(err)
		}
		o.tell(a)
		link := newFakeLink(2) // so that it stops in the middle
		o.use(link)
		var got [3][]byte
		whole := func(ms []proto.Message) bool {
			for _, m := range ms {
				switch m := m.(type) {
				case *musterv1.OutputChunk:
					if int(m.Offset) != len(got[m.Stream]) || len(m.Data) > chunkSize {
						t.Errorf("chunk of %v at %d, have %d", m.Stream, m.Offset, len(got[m.Stream]))
					}
					got[m.Stream] = append(got[m.Stream], m.Data...)
				case *musterv1.Target:
					return true
				}
			}
			return false
		}
		for range 5 {
			synctest.Wait()
			if whole(link.take()) {
				break
			}
		}
		if !bytes.Equal(got[musterv1.Stream_STDOUT], stdout) || !bytes.Equal(got[musterv1.Stream_STDERR], stderr) {
			t.Errorf("got %d and %d bytes", len(got[1]), len(got[2]))
		}

		// The coordinator could not store it: all of it again, from 0.
		got = [3][]byte{}
		o.refused("a")
		time.Sleep(2 * time.Second)
		for range 5 {
			synctest.Wait()
			if whole(link.take()) {
				break
			}
		}
		if !bytes.Equal(got[musterv1.Stream_STDOUT], stdout) {
			t.Errorf("got %d bytes the second time", len(got[1]))
		}

		// The file is lost: the state is told all the same.
		if err := os.Remove(o.outputs.path("a")); err != nil {
			t.Fatal(err)
		}
		o.tell(a)
		time.Sleep(time.Second)
		sent := link.take()
		last, ok := sent[len(sent)-1].(*musterv1.Target)
		if !ok || len(sent) != 1 || last.Stdout.Kept != 0 || !last.Stdout.Truncated || last.Stdout.Size != float64(len(stdout)) || last.Reason == "" {
			t.Errorf("sent %v", sent)
		}
	})
}

// A coordinator that refuses for long is not asked without a pause.
func TestOutboxRefusedAgainAndAgain(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(1000)
		o.use(link)
		o.tell(final("a"))
		n := 0
		for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(100 * time.Millisecond) {
			synctest.Wait()
			if len(ids(link.take())) > 0 {
				n++
				o.refused("a")
			}
		}
		if n < 8 || n > 20 {
			t.Errorf("sent %d times in 5 min", n)
		}
	})
}

func TestOutboxEndsWithItsLastWords(t *testing.T) {
	inEndingOutbox(t, func(o *outbox, stop, wait func()) {
		link := newFakeLink(1)
		o.use(link)
		o.tell(final("a"))
		o.tell(final("b"))
		o.tell(final("c"))
		synctest.Wait()
		began := time.Now()
		stop()
		wantIDs(t, link, "a")
		wantIDs(t, link, "b")
		// Nobody takes the last one.
		link.mu.Lock()
		link.room = 0
		link.mu.Unlock()
		wait()
		if took := time.Since(began); took > lastWords {
			t.Errorf("took %v", took)
		}
	})
}
