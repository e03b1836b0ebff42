package bus

import (
	"strings"
	"testing"
)

func TestTheFasterWayCountsAndRatiosAreWithinRounds(t *testing.T) {
	r := newResults(Config{Peers: []int{1000}, Windows: []int{1}})
	add := func(name, how string, rates ...float64) {
		for _, rate := range rates {
			r.add(contestant{name: name, argv: []string{how}}, 1000, 1, sample{rate: rate})
		}
	}
	add(muster, "serve", 120, 60, 240)
	add(libzmq, "1", 10, 10, 10)
	add(libzmq, "2", 100, 50, 100)
	if got := r.ratio(muster, libzmq, 1000, 1); got != 1.2 {
		t.Errorf("ratio %v, want 1.2", got)
	}
	table, missed := r.Bars()
	if missed != 0 || strings.Count(table.Markdown(), "reached") != 1 {
		t.Errorf("%d missed, want 0 of 1:\n%s", missed, table.Markdown())
	}
	add(echo, "serve", 1000, 1000, 1000)
	if _, missed := r.Bars(); missed != 1 {
		t.Errorf("%d missed, want 1", missed)
	}
	if rate, _ := r.cells(zmq4, 1000, 1); rate != "stalled" {
		t.Errorf("rate %q of a server that did nothing", rate)
	}
}

func TestThousands(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 849: "800", 999: "1,000", 12_345: "12,300", 2_208_749: "2,208,700"} {
		if got := thousands(f); got != want {
			t.Errorf("thousands(%v) = %q, want %q", f, got, want)
		}
	}
}
