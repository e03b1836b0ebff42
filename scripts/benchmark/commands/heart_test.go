package commands

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestHeartBeatsBetweenStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats atomic.Int64
		h := heart{fleet: &fleet{}, beat: func() { beats.Add(1) }}
		watch := func(least, most int64) {
			t.Helper()
			beats.Store(0)
			time.Sleep(100 * time.Second)
			synctest.Wait()
			if n := beats.Load(); n < least || n > most {
				t.Errorf("%d beats in 100 s, want %d to %d", n, least, most)
			}
		}
		h.rest()
		watch(0, 0) // not registered
		h.start(10 * time.Second)
		watch(9, 12)
		h.fleet.interval.Store(int64(time.Second))
		h.rest()
		watch(90, 112)
		h.stop()
		watch(0, 0)
		h.start(50 * time.Second) // told to be slow, and ordered to be quick
		watch(90, 112)
		h.stop()
	})
}

func TestHeartsBeatTogetherAtTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats atomic.Int64
		h := heart{fleet: &fleet{}, tick: time.Second}
		h.beat = func() {
			beats.Add(1)
			if at := time.Now(); !at.Truncate(h.tick).Equal(at) {
				t.Errorf("it beats at %v", at)
			}
		}
		h.start(10 * time.Second)
		time.Sleep(100 * time.Second)
		synctest.Wait()
		h.stop()
		if n := beats.Load(); n < 8 || n > 12 {
			t.Errorf("%d beats in 100 s, want 8 to 12", n)
		}
	})
}
