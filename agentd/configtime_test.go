package agentd

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// inTime runs an applier in a bubble, on a link that takes everything.
func inTime(t *testing.T, body func(t *testing.T, a *applier, link *fakeLink)) {
	synctest.Test(t, func(t *testing.T) {
		a, link := quietApplier(t), newFakeLink(10_000)
		a.use(link)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx)
		}()
		body(t, a, link)
		cancel()
		<-done
	})
}

// says offers a config and returns when there is nothing to do about it now.
func (a *applier) says(t *testing.T, link *fakeLink, o *musterv1.ConfigOffer) *musterv1.ConfigStatus {
	t.Helper()
	if err := a.onOffer(link, o); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return a.now(o.Name)
}

// count counts how often a step is reached.
func (a *applier) count(step string) *atomic.Int32 {
	n := new(atomic.Int32)
	a.steps = func(at string) {
		if at == step {
			n.Add(1)
		}
	}
	return n
}

func (a *applier) now(name string) *musterv1.ConfigStatus {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.statusLocked(configKey{musterv1.Config_PIPELINE, name})
}

func TestC083AttemptsOfADay(t *testing.T) {
	inTime(t, func(t *testing.T, a *applier, link *fakeLink) {
		attempts := a.count("begin")
		o := version("a", 1, "x", at("dir/a"))
		if s := a.says(t, link, o); s.Status != musterv1.ConfigStatus_FAILED {
			t.Errorf("got %v", s)
		}
		for hour, most := range []int32{13, 7, 7} {
			before := attempts.Load()
			for range 60 {
				time.Sleep(time.Minute)
				a.says(t, link, o) // as often as it likes
			}
			if n := attempts.Load() - before; n > most || n < 5 {
				t.Errorf("%d attempts in hour %d", n, hour+1)
			}
		}
		if err := os.Mkdir(filepath.Join(a.root, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(longestRetry + time.Second)
		if s := a.now("a"); s.Status != musterv1.ConfigStatus_APPLIED {
			t.Errorf("got %v", s)
		}
		if sent := link.take(); len(sent) != 3 { // APPLYING, FAILED, APPLIED
			t.Errorf("told %v", sent)
		}
	})
}

func TestChangedOnTheHostIsSeenWithinAMinute(t *testing.T) {
	inTime(t, func(t *testing.T, a *applier, link *fakeLink) {
		o := version("a", 1, "one")
		file := filepath.Join(a.root, "a")
		edit := func() {
			if err := os.WriteFile(file, []byte("edited"), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookEvery + time.Second)
		}
		if s := a.says(t, link, o); s.RunningVersion != 1 {
			t.Errorf("got %v", s)
		}
		link.take()
		edit()
		told, _ := link.take()[0].(*musterv1.ConfigFeedback)
		if s := told.GetConfigs()[0]; s.Status != musterv1.ConfigStatus_UNSET || s.RunningVersion != 0 || s.Version != 1 {
			t.Errorf("told %v", s)
		}
		if err := os.WriteFile(file, []byte("one"), 0o600); err != nil { // by hand
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		if s := a.now("a"); s.Status != musterv1.ConfigStatus_APPLIED || s.RunningVersion != 1 {
			t.Errorf("got %v", s)
		}
		// Who edits it again and again is not fought every time.
		repairs := a.count("commit")
		for range 60 {
			edit()
			a.says(t, link, o)
		}
		if n := repairs.Load(); n > 13 || n < 5 {
			t.Errorf("%d repairs in an hour", n)
		}
	})
}

// Content that does not come leaves the config as it was.
func TestFetchTakesNoLongerThanItMay(t *testing.T) {
	inTime(t, func(t *testing.T, a *applier, link *fakeLink) {
		o := version("a", 1, "x")
		o.Inline, o.Content = false, nil
		if s := a.says(t, link, o); s.Status != musterv1.ConfigStatus_APPLYING {
			t.Errorf("got %v", s)
		}
		time.Sleep(pieceTime + time.Second)
		if s := a.now("a"); s.Version != 0 || len(a.held) != 0 {
			t.Errorf("got %v, %d held", s, len(a.held))
		}
		sent := link.take()
		last, _ := sent[len(sent)-1].(*musterv1.ConfigFeedback)
		if s := last.GetConfigs()[0]; s.Status != musterv1.ConfigStatus_UNSET {
			t.Errorf("told %v", s)
		}
		// A coordinator that sends a byte at a time is not waited for for ever.
		o = version("b", 1, string(make([]byte, 1<<20)))
		o.Inline, o.Content = false, nil
		a.says(t, link, o)
		for i := 0; a.now("b").Version == 1; i++ {
			if i > 1000 {
				t.Fatal("it waits for ever")
			}
			time.Sleep(time.Second)
			a.onContent(&musterv1.ConfigContent{Kind: o.Kind, Name: o.Name, Version: 1, Offset: uint32(i), Size: o.Size, Data: []byte{0}})
		}
	})
}
