package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// watcher is a reader of events.
type watcher struct {
	grpc.ServerStream
	ctx  context.Context
	got  []*musterv1.Event
	stop func() error
}

func (w *watcher) Context() context.Context     { return w.ctx }
func (w *watcher) SendHeader(metadata.MD) error { return nil }
func (w *watcher) Send(e *musterv1.Event) error { w.got = append(w.got, e); return nil }
func (w *watcher) kinds() (ks []string) {
	synctest.Wait()
	for _, e := range w.got {
		switch e.Kind {
		case "agent":
			ks = append(ks, "agent "+e.Agent.Id+" "+e.Agent.Status.String())
		case "command":
			ks = append(ks, "command "+e.Command.State.String())
		case "target":
			ks = append(ks, "target "+e.Target.AgentId+" "+e.Target.State.String())
		default:
			ks = append(ks, e.Kind)
		}
	}
	return ks
}

func (r *rig) watch(after string, kinds ...string) *watcher {
	ctx, cancel := context.WithCancel(r.t.Context())
	w := &watcher{ctx: ctx}
	s := &eventService{c: r.c, quit: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.WatchEvents(&musterv1.WatchEventsRequest{After: after, Kinds: kinds}, w) }()
	w.stop = func() error { cancel(); return <-done }
	synctest.Wait()
	return w
}

func TestEventsTellTheWholeStory(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		w, only := r.watch(""), r.watch("", "command")
		a := r.peer("a").join()
		cmd := r.submit(to("a"))
		a.report(cmd.Id, musterv1.Target_RUNNING)
		a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		a.leave()
		want := []string{"agent a ONLINE", "command OPEN", "target a RUNNING", "target a SUCCEEDED", "command DONE", "agent a SUSPECT"}
		if got := w.kinds(); !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		if got := only.kinds(); !slices.Equal(got, []string{"command OPEN", "command DONE"}) {
			t.Errorf("got %v", got)
		}
		w.stop()
		only.stop()
	})
}

func TestC101ResumeOrOneClearResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.EventHistory = 8
		r.start()
		w := r.watch("")
		a := r.peer("a").join()
		first := w.kinds()
		id := w.got[len(w.got)-1].Id
		w.stop()
		for range 2 { // 2 events each
			r.submit(to("a"))
			a.report(a.commands()[len(a.got)-1].Id, musterv1.Target_SUCCEEDED)
		}
		w = r.watch(id)
		if got := w.kinds(); len(got) != 6 || got[0] != "command OPEN" {
			t.Errorf("resumed after %v with %v", first, got)
		}
		last := w.got[len(w.got)-1].Id
		w.stop()
		for range 2 {
			r.submit(to("a"))
			a.report(a.commands()[len(a.got)-1].Id, musterv1.Target_SUCCEEDED)
		}
		for name, after := range map[string]string{
			"too old": id, "another epoch": "01JD0000000000000000000000.1", "garbage": "x", "the future": strings.Split(id, ".")[0] + ".999",
		} {
			w := r.watch(after)
			if got := w.kinds(); !slices.Equal(got, []string{"resync"}) {
				t.Errorf("%s: got %v", name, got)
			}
			back := r.watch(w.got[0].Id) // the id of a resync is one to resume after
			if got := back.kinds(); len(got) != 0 {
				t.Errorf("%s: then %v", name, got)
			}
			back.stop()
			w.stop()
		}
		w = r.watch(last)
		if got := w.kinds(); len(got) != 6 {
			t.Errorf("got %v", got)
		}
		w.stop()
		a.leave()
		r.stop()
		r.store.Close()
	})
}

// Thousands of targets' events are not made when nobody was there for a minute:
// who comes back then is not told that it missed nothing.
func TestC101EventsThatNobodyWatched(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		for _, c := range []struct {
			away time.Duration
			want []string
		}{
			{30 * time.Second, []string{"command OPEN", "target a RUNNING", "target a SUCCEEDED", "command DONE"}},
			{2 * time.Minute, []string{"resync"}},
		} {
			w := r.watch("")
			cmd := r.submit(to("a"))
			w.kinds()
			last := w.got[len(w.got)-1].Id
			a.report(cmd.Id, musterv1.Target_SUCCEEDED)
			w.stop()
			time.Sleep(c.away)
			cmd = r.submit(to("a"))
			a.report(cmd.Id, musterv1.Target_RUNNING)
			a.report(cmd.Id, musterv1.Target_SUCCEEDED)
			synctest.Wait()
			w = r.watch(last)
			got := w.kinds()
			if len(got) > len(c.want) {
				got = got[len(got)-len(c.want):]
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("away for %v: got %v, want %v", c.away, got, c.want)
			}
			next := r.submit(to("a"))
			a.report(next.Id, musterv1.Target_SUCCEEDED)
			if got := w.kinds(); !slices.Equal(got[len(got)-3:], []string{"command OPEN", "target a SUCCEEDED", "command DONE"}) {
				t.Errorf("away for %v: then got %v", c.away, got)
			}
			w.stop()
		}
	})
}

// A reader that takes nothing holds nobody up, and finds one resync.
func TestC100SlowReaderGetsOneResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(16, time.Now)
		next, _ := f.from("")
		for i := range 1000 {
			f.publish(&musterv1.Event{Kind: fmt.Sprint(i)})
		}
		es, next, err := f.read(t.Context(), next)
		if err != nil || len(es) != 1 || es[0].Kind != "resync" {
			t.Fatalf("got %v, %v", es, err)
		}
		f.publish(&musterv1.Event{Kind: "after"})
		es, _, err = f.read(t.Context(), next)
		if err != nil || len(es) != 1 || es[0].Kind != "after" {
			t.Fatalf("got %v, %v", es, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := f.read(ctx, f.next); err == nil {
			t.Error("a read of nothing must wait for the end")
		}
	})
}
