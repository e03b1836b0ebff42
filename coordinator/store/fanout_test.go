package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

func change(rev Rev, keys ...string) Change {
	c := Change{Space: "s", Rev: rev}
	for _, k := range keys {
		c.Events = append(c.Events, Event{KV: KV{Key: []byte(k), Value: []byte("v"), Rev: rev}})
	}
	return c
}

func fanout(rev Rev) *Fanout { return NewFanout(Spaces{"s": true, "plain": false}, rev) }

func TestWatchersShareTheirEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanout(0)
		defer f.Close()
		chs := map[string]<-chan []Event{}
		for _, prefix := range []string{"", "a", "b", "b/", "b0", "c", "\xff"} {
			ch, err := f.Watch(t.Context(), "s", []byte(prefix), 0)
			if err != nil {
				t.Fatal(err)
			}
			chs[prefix] = ch
		}
		c := change(1, "a", "b", "b/1", "b/2", "d", "\xff\xff")
		f.Publish([]Change{c})
		for prefix, want := range map[string]struct{ from, to int }{
			"": {0, 6}, "a": {0, 1}, "b": {1, 4}, "b/": {2, 4}, "\xff": {5, 6},
		} {
			got := <-chs[prefix]
			if len(got) != want.to-want.from || cap(got) != len(got) || &got[0] != &c.Events[want.from] {
				t.Errorf("prefix %q: %d events, or copies", prefix, len(got))
			}
		}
		synctest.Wait()
		for _, prefix := range []string{"b0", "c"} {
			if len(chs[prefix]) != 0 {
				t.Errorf("prefix %q: got %v", prefix, <-chs[prefix])
			}
		}
	})
}

func TestFanoutHoldsNoMoreThanItsLimits(t *testing.T) {
	for name, limit := range map[string]func(*feed){
		"events": func(f *feed) { f.maxEvents = 10 },
		"bytes":  func(f *feed) { f.maxBytes = 10 * 2 }, // a key and a value of one byte each
	} {
		t.Run(name, func(t *testing.T) {
			f := fanout(5)
			defer f.Close()
			feed := f.feeds["s"]
			limit(feed)
			for rev := Rev(6); rev <= 100; rev++ {
				f.Publish([]Change{change(rev, "a", "b")})
			}
			if len(feed.held) != 5 || feed.events != 10 || feed.bytes != 20 || feed.floor != 95 {
				t.Fatalf("%d changes, %d events, %d bytes, from %d", len(feed.held), feed.events, feed.bytes, feed.floor)
			}
			if _, err := f.Watch(t.Context(), "s", nil, 94); !errors.Is(err, ErrCompacted) {
				t.Fatalf("got error %v", err)
			}
			ch, err := f.Watch(t.Context(), "s", nil, 95)
			if err != nil {
				t.Fatal(err)
			}
			for rev := Rev(96); rev <= 100; rev++ {
				if events := <-ch; events[0].Rev != rev {
					t.Fatalf("got %d, want %d", events[0].Rev, rev)
				}
			}
			// One commit over the limit is held by itself.
			var keys []string
			for i := range 50 {
				keys = append(keys, fmt.Sprint(i))
			}
			f.Publish([]Change{change(101, keys...)})
			if events := <-ch; len(events) != 50 {
				t.Fatalf("got %d events", len(events))
			}
		})
	}
}

func TestWatchBeforeItsRevisionIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanout(0)
		defer f.Close()
		ch, err := f.Watch(t.Context(), "s", nil, 2) // its page has shown 1 and 2
		if err != nil {
			t.Fatal(err)
		}
		f.Publish([]Change{change(1, "a"), change(2, "a"), change(3, "a")})
		if events := <-ch; events[0].Rev != 3 {
			t.Fatalf("got revision %d", events[0].Rev)
		}
	})
}

// TestWatchesLeaveNothingBehind fails in synctest if a goroutine stays.
func TestWatchesLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanout(0)
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			if _, err := f.Watch(ctx, "s", nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		for rev := range Rev(10) { // more than the channels take
			f.Publish([]Change{change(rev+1, "a")})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if n := len(f.feeds["s"].watchers); n != 0 {
			t.Fatalf("%d watchers are left", n)
		}
		if _, err := f.Watch(t.Context(), "s", nil, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		f.Close()
		if _, err := f.Watch(t.Context(), "s", nil, 0); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got error %v", err)
		}
	})
}

func TestEndOfPrefix(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "ab": "ac", "\x00": "\x01", "\xff": "", "\xff\xff": "", "": ""} {
		end := End([]byte(prefix))
		if string(end) != want || (want == "") != (end == nil) {
			t.Errorf("End(%q) = %q, want %q", prefix, end, want)
		}
	}
}

func BenchmarkFanout(b *testing.B) {
	f := fanout(0)
	defer f.Close()
	for i := range 100 {
		if _, err := f.Watch(b.Context(), "s", fmt.Appendf(nil, "%03d", i*10), 0); err != nil {
			b.Fatal(err)
		}
	}
	var keys []string
	for i := range 1000 {
		keys = append(keys, fmt.Sprintf("%03d/%04d", i, i))
	}
	rev := Rev(0)
	for b.Loop() {
		rev++
		f.Publish([]Change{{Space: "s", Rev: rev, Events: change(rev, keys...).Events}})
	}
}
