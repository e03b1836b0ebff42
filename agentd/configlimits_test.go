package agentd

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent that holds as many configs as it can says so, and forgets those that
// are gone first. Its Register fits nevertheless, and what it leaves out is told.
func TestConfigsAreBounded(t *testing.T) {
	a := quietApplier(t)
	link := newFakeLink(10_000)
	long := strings.Repeat("n", 120)
	offer := func(i int, v int32) {
		t.Helper()
		if err := a.onOffer(link, version(fmt.Sprint(long, i), v, "x")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxConfigs + 1 {
		offer(i, 1)
	}
	if n := len(a.held); n != maxConfigs {
		t.Errorf("%d are held", n)
	}
	last := link.take()
	m, _ := last[len(last)-1].(*musterv1.ConfigFeedback)
	if len(last) != 1 || m.Configs[0].Status != musterv1.ConfigStatus_FAILED || m.Configs[0].Reason != errFull.Error() {
		t.Errorf("got %v", last)
	}
	all := a.report()
	short := fit(&musterv1.Register{AgentId: "a", Configs: all})
	if len(all) != maxConfigs || proto.Size(short) > maxRegister || len(short.Configs) < 100 {
		t.Errorf("%d of %d in %d bytes", len(short.Configs), len(all), proto.Size(short))
	}
	a.owe(all[len(short.Configs):])
	a.use(link)
	told := 0
	for _, m := range link.take() {
		told += len(m.(*musterv1.ConfigFeedback).Configs)
	}
	if told != len(all)-len(short.Configs) {
		t.Errorf("%d were told, want %d", told, len(all)-len(short.Configs))
	}
	for _, h := range a.held {
		h.waiting = nil
		_ = a.forget(h, "")
		break
	}
	offer(maxConfigs+1, 1)
	if len(a.held) != maxConfigs || len(link.take()) == 0 {
		t.Error("the room of a deleted one was not used")
	}
}

// quietApplier has a folder, and does nothing by itself.
func quietApplier(t *testing.T) *applier {
	t.Helper()
	a, err := newApplier(Config{Dir: t.TempDir(), retry: firstRetry}, t.TempDir(), hooks{}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Content that waits takes a bounded part of memory: the rest is fetched later.
func TestWaitingContentIsBounded(t *testing.T) {
	a := quietApplier(t)
	content := strings.Repeat("x", maxConfigSize)
	for i := range 30 {
		if err := a.onOffer(newFakeLink(1), version(fmt.Sprint(i), 1, content)); err != nil {
			t.Fatal(err)
		}
	}
	here := 0
	for _, h := range a.held {
		if h.waiting.here {
			here++
		}
	}
	if here != maxInlineHeld/maxConfigSize || a.inlineLocked() > maxInlineHeld {
		t.Errorf("%d are here, %d bytes", here, a.inlineLocked())
	}
}

// What is due waits while somebody looks at what is in place, and the applier
// does not ask again and again whether that is over.
func TestNothingIsDueWhileAConfigIsLookedAt(t *testing.T) {
	a := quietApplier(t)
	o := version("a", 1, "x")
	if err := a.onOffer(newFakeLink(1), o); err != nil {
		t.Fatal(err)
	}
	h := a.held[configKey{o.Kind, o.Name}]
	a.setLooking(h, true)
	if a.next() != nil || a.nextDue() == 0 {
		t.Error("it is due")
	}
	a.setLooking(h, false)
	if a.nextDue() != 0 || a.next() != h {
		t.Error("it is not due afterwards")
	}
}

// A full queue loses no status, and a broken one keeps nobody.
func TestFeedbackWaitsForTheLink(t *testing.T) {
	a := quietApplier(t)
	link := newFakeLink(1)
	a.use(link)
	for i := range 100 {
		if err := a.onOffer(link, version(fmt.Sprint(i), 1, "x")); err != nil {
			t.Fatal(err)
		}
	}
	told := map[string]bool{}
	for range 200 {
		for _, m := range link.take() {
			for _, s := range m.(*musterv1.ConfigFeedback).Configs {
				told[s.Name] = true
			}
		}
		a.mu.Lock()
		a.tellLocked()
		a.mu.Unlock()
	}
	if len(told) != 100 {
		t.Errorf("%d were told", len(told))
	}
	link.Close(bus.ErrNoPeer)
	a.gone(link)
	if err := a.onOffer(link, removal("1")); err != nil {
		t.Error(err)
	}
	if len(a.report()) != 100 {
		t.Errorf("a Register has %d", len(a.report()))
	}
}

// What changes while a Register is on its way is told after it: the Register
// says how it was before.
func TestChangeDuringRegister(t *testing.T) {
	a := quietApplier(t)
	link := newFakeLink(100)
	a.use(link)
	a.report()
	if err := a.onOffer(link, version("a", 1, "x")); err != nil { // told before the Register is
		t.Fatal(err)
	}
	link.take()
	a.use(link)
	if sent := link.take(); len(sent) != 1 {
		t.Errorf("got %v", sent)
	}
	a.report()
	a.use(link)
	if sent := link.take(); len(sent) != 0 {
		t.Errorf("told twice: %v", sent)
	}
	a.onRefused()
	a.mu.Lock()
	a.tellLocked()
	a.mu.Unlock()
	if sent := link.take(); len(sent) != 1 {
		t.Errorf("refused, and then told %v", sent)
	}
}

// An offer is taken again when the link is gone on which its content was asked
// for, also before anybody has noticed that.
func TestOfferOnAnotherLink(t *testing.T) {
	a := quietApplier(t)
	old, link := newFakeLink(100), newFakeLink(100)
	o := version("a", 1, "x")
	o.Inline, o.Content = false, nil
	offer := func(l Link) *heldConfig {
		if err := a.onOffer(l, o); err != nil {
			t.Fatal(err)
		}
		return a.held[configKey{o.Kind, o.Name}]
	}
	if h := offer(old); a.next() != h || h.busy == nil {
		t.Fatal("nothing is done about the first")
	}
	if h := offer(old); h.waiting != nil {
		t.Error("a copy waits for what is under way")
	}
	if h := offer(link); h.waiting == nil {
		t.Error("it waits for a link that is gone")
	}
}
