package bus

import (
	"slices"
	"strings"
	"time"
)

// Results are the samples of all rounds.
type Results struct {
	cfg     Config
	samples map[cell]map[string][]sample // then by command line; a sample for each round
	idle    map[cell]map[string][]float64
}

// cell is what a line of the table is about.
type cell struct {
	name          string
	peers, window int
}

func newResults(cfg Config) *Results {
	return &Results{cfg: cfg, samples: map[cell]map[string][]sample{}, idle: map[cell]map[string][]float64{}}
}

func (r *Results) add(c contestant, peers, window int, s sample) {
	addTo(r.samples, cell{c.name, peers, window}, c, s)
}

func (r *Results) addIdle(c contestant, peers int, bytes float64) {
	addTo(r.idle, cell{c.name, peers, 0}, c, bytes)
}

func addTo[T any](all map[cell]map[string][]T, at cell, c contestant, v T) {
	if all[at] == nil {
		all[at] = map[string][]T{}
	}
	how := strings.Join(c.argv, " ")
	all[at][how] = append(all[at][how], v)
}

// best is the samples of the fastest way to run a server; nil if there are none.
func (r *Results) best(name string, peers, window int) (best []sample) {
	for _, samples := range r.samples[cell{name, peers, window}] {
		if best == nil || median(rates(samples)) > median(rates(best)) {
			best = samples
		}
	}
	return best
}

func rates(samples []sample) (rates []float64) {
	for _, s := range samples {
		rates = append(rates, s.rate)
	}
	return rates
}

func cpus(samples []sample) (server, load []time.Duration) {
	for _, s := range samples {
		server, load = append(server, s.cpu), append(load, s.load)
	}
	return server, load
}

// leastIdle is the memory of an idle peer, in bytes; 0 if it was not measured.
func (r *Results) leastIdle(name string, peers int) (least float64) {
	for _, idle := range r.idle[cell{name, peers, 0}] {
		if m := median(idle); least == 0 || m < least {
			least = m
		}
	}
	return least
}

// ratio is the median of our rate against theirs in each round; 0 if there is none.
func (r *Results) ratio(ours, theirs string, peers, window int) float64 {
	return r.compare(ours, theirs, peers, window, func(a, b sample) float64 { return a.rate / b.rate })
}

// ratioByCPU is what the ratio would be if both cores did nothing else: their CPU
// time for a round trip, with the load's, against ours.
func (r *Results) ratioByCPU(ours, theirs string, peers, window int) float64 {
	return r.compare(ours, theirs, peers, window, func(a, b sample) float64 {
		return float64(b.cpu+b.load) / float64(a.cpu+a.load)
	})
}

func (r *Results) compare(ours, theirs string, peers, window int, by func(a, b sample) float64) float64 {
	a, b := r.best(ours, peers, window), r.best(theirs, peers, window)
	var ratios []float64
	for i := range min(len(a), len(b)) {
		switch {
		case a[i].rate == 0:
			ratios = append(ratios, 0) // ours stalled
		case b[i].rate > 0:
			ratios = append(ratios, by(a[i], b[i]))
		}
	}
	return median(ratios)
}

// median of an odd number of values, or the lower of the two in the middle; 0 of none.
func median[T float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[(len(values)-1)/2]
}
