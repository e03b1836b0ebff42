package agentd

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC077ParallelInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(4)
		var mu sync.Mutex
		running, most := 0, 0
		var order []string
		e.left = func(*held) time.Duration { return time.Hour }
		e.expire = func(h *held) { t.Errorf("%s expired", h.id) }
		e.start = func(_ context.Context, h *held) func() {
			if h.id == "017" {
				return nil // settled meanwhile
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, h.id)
			running++
			most = max(most, running)
			return func() {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				running--
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { e.run(ctx) })
		for i := range 201 {
			e.put(&held{id: fmt.Sprintf("%03d", i)})
		}
		time.Sleep(50*time.Second + time.Millisecond)
		mu.Lock()
		if most != 4 || len(order) != 200 || running != 0 {
			t.Errorf("%d at once, %d started, %d running", most, len(order), running)
		}
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Errorf("%s after %s", order[i], order[i-1])
			}
		}
		mu.Unlock()
		cancel()
		wg.Wait()
	})
}

// A command that expires while all slots are taken is told so then, not later.
func TestExpiresWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(1)
		began := time.Now()
		expired := map[string]time.Duration{}
		e.left = func(h *held) time.Duration { return h.received.Boot - time.Since(began) }
		e.expire = func(h *held) { expired[h.id] = time.Since(began) }
		e.start = func(ctx context.Context, _ *held) func() { return func() { <-ctx.Done() } }
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { e.run(ctx) })
		e.put(&held{id: "runs", received: stamp{Boot: time.Second}})
		synctest.Wait()
		e.put(&held{id: "b", received: stamp{Boot: time.Minute}})
		e.put(&held{id: "a", received: stamp{Boot: 30 * time.Second}})
		e.put(&held{id: "late", received: stamp{Boot: -1}})
		time.Sleep(2 * time.Minute)
		cancel()
		wg.Wait()
		if fmt.Sprint(expired) != "map[a:30s b:1m0s late:0s]" {
			t.Errorf("expired %v", expired)
		}
	})
}

func TestExpiryClocks(t *testing.T) {
	now := 100 * time.Second
	c := clock{bootID: "this", boot: func() time.Duration { return now }}
	for _, s := range []struct {
		name string
		at   stamp
		want time.Duration
	}{
		{"this boot, whatever the wall clock says", stamp{BootID: "this", Boot: 40 * time.Second, Wall: time.Now().Add(time.Hour)}, time.Minute},
		{"a boot-time clock that is wrong", stamp{BootID: "this", Boot: 400 * time.Second}, 0},
		{"another boot", stamp{BootID: "that", Boot: 40 * time.Second, Wall: time.Now().Add(-time.Hour)}, time.Hour},
		{"another boot, wall clock set back", stamp{BootID: "that", Wall: time.Now().Add(time.Hour)}, 0},
	} {
		if got := c.since(s.at).Round(time.Second); got != s.want {
			t.Errorf("%s: %v, want %v", s.name, got, s.want)
		}
	}
	a := &Agent{cfg: Config{clock: c}}
	for _, s := range []struct {
		in   *durationpb.Duration
		want time.Duration
	}{
		{durationpb.New(90 * time.Second), 30 * time.Second},
		{nil, defaultExpiresIn - time.Minute},
		{&durationpb.Duration{}, -time.Minute},
		{&durationpb.Duration{Seconds: -5}, -time.Minute},
		{&durationpb.Duration{Seconds: math.MinInt64}, -time.Minute}, // C066: no overflow
		{&durationpb.Duration{Seconds: math.MaxInt64}, math.MaxInt64 - time.Minute},
	} {
		h := &held{lifetime: lifetime(&musterv1.Command{ExpiresIn: s.in}), received: stamp{BootID: "this", Boot: 40 * time.Second}}
		if got := a.left(h); got != s.want {
			t.Errorf("%v: left %v, want %v", s.in, got, s.want)
		}
	}
	if m := machineClock(); m.since(m.now()) > time.Second {
		t.Error("the machine's clock runs away")
	}
}
