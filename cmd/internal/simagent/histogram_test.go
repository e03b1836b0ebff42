package simagent

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestStepsOfTheHistogramMeet(t *testing.T) {
	for us := int64(0); us < 200_000; us++ {
		step := stepOf(us)
		if top := topOf(step); us > top || step > 0 && us <= topOf(step-1) {
			t.Fatalf("%d µs is in step %d, which ends at %d", us, step, top)
		}
	}
}

func TestHistogramIsRightTo3Percent(t *testing.T) {
	var h histogram
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(rand.ExpFloat64()*float64(20*time.Millisecond)) + time.Millisecond
		h.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	got := h.times()
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{
		{"p50", got.P50, all[4999]}, {"p90", got.P90, all[8999]}, {"p99", got.P99, all[9899]}, {"p99.9", got.P999, all[9989]},
	} {
		if c.got < c.want-time.Microsecond || c.got > c.want+c.want*33/1000 {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
	if got.Count != 10_000 || got.Longest != all[9999].Truncate(time.Microsecond) {
		t.Errorf("got %+v", got)
	}
}

func TestHistogramTakesAnyTime(t *testing.T) {
	var h histogram
	if got := h.times(); got != (Times{}) {
		t.Errorf("of nothing: %+v", got)
	}
	for _, d := range []time.Duration{-time.Second, 0, 1000 * time.Hour} {
		h.add(d)
	}
	got := h.times()
	if got.Count != 3 || got.P50 != 0 || got.Longest != 1000*time.Hour || got.P999 > got.Longest {
		t.Errorf("got %+v", got)
	}
}
