package agentd

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	isReceived = musterv1.Target_RECEIVED
	isRunning  = musterv1.Target_RUNNING
)

func statusOf(id string, s musterv1.Target_State) *musterv1.Target {
	return &musterv1.Target{CommandId: id, State: s}
}

// wantTold compares all that was sent since the last time, each as "id STATE".
func wantTold(t *testing.T, l *fakeLink, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, m := range l.take() {
		s := m.(*musterv1.Target)
		got = append(got, fmt.Sprint(s.CommandId, " ", s.State))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

func TestQuickCommandIsToldOnce(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(100)
		o.use(link)
		o.tell(statusOf("a", isReceived))
		time.Sleep(statusHold / 2)
		o.tell(statusOf("a", isRunning))
		o.tell(statusOf("b", isReceived))
		time.Sleep(statusHold/2 - time.Millisecond)
		wantTold(t, link)
		o.tell(final("a"))
		wantTold(t, link, "a SUCCEEDED")
		o.tell(statusOf("a", isRunning)) // said too late
		time.Sleep(statusHold)
		wantTold(t, link, "b RECEIVED")
		time.Sleep(time.Second)
		wantTold(t, link)
	})
}

func TestLongCommandIsToldToRun(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(100)
		o.use(link)
		o.tell(statusOf("a", isReceived))
		time.Sleep(statusHold / 2)
		o.tell(statusOf("a", isRunning))
		o.tell(statusOf("a", isReceived)) // what a copy was answered with, a moment late
		time.Sleep(statusHold/2 - time.Millisecond)
		wantTold(t, link)
		time.Sleep(time.Millisecond)
		wantTold(t, link, "a RUNNING")
		o.tell(statusOf("a", isRunning)) // a copy came
		time.Sleep(statusHold)
		wantTold(t, link, "a RUNNING")
		o.tell(final("a"))
		wantTold(t, link, "a SUCCEEDED")
	})
}

// A status is of one link: the Register of the next one tells it.
func TestStatusOfAnEarlierLinkIsDropped(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		first, second := newFakeLink(100), newFakeLink(100)
		o.use(first)
		o.tell(statusOf("a", isRunning))
		o.use(second)
		time.Sleep(time.Second)
		wantTold(t, first)
		wantTold(t, second)
	})
}

// A link that takes nothing is not tried again and again.
func TestStatusWaitsForRoom(t *testing.T) {
	inOutbox(t, func(o *outbox) {
		link := newFakeLink(2)
		o.use(link)
		for _, id := range []string{"a", "b", "c", "d"} {
			o.tell(statusOf(id, isReceived))
		}
		time.Sleep(time.Second)
		o.tell(statusOf("c", isRunning))
		o.tell(final("d"))
		synctest.Wait()
		link.mu.Lock()
		tries := link.tries
		link.mu.Unlock()
		if tries > 5 {
			t.Errorf("%d messages were tried in a second, and there was room for 2", tries)
		}
		wantTold(t, link, "a RECEIVED", "b RECEIVED")
		wantTold(t, link, "c RUNNING", "d SUCCEEDED")
	})
}

// What waits when the agent ends is told: of a command that was received it is
// all that the coordinator hears for now.
func TestStatusIsAmongTheLastWords(t *testing.T) {
	inEndingOutbox(t, func(o *outbox, stop, wait func()) {
		link := newFakeLink(100)
		o.use(link)
		o.tell(statusOf("waits", isReceived))
		o.tell(statusOf("ends", isRunning))
		o.tell(final("ends"))
		synctest.Wait()
		began := time.Now()
		stop()
		wait()
		if took := time.Since(began); took > 0 {
			t.Errorf("took %v", took)
		}
		wantTold(t, link, "ends SUCCEEDED", "waits RECEIVED")
	})
}
