package bus

import (
	"fmt"
	"time"

	"github.com/musterhq/muster/scripts/benchmark/report"
)

// Rates is a table of what each server did.
func (r *Results) Rates() *report.Table {
	columns := []string{"server", "peers"}
	for _, w := range r.cfg.Windows {
		columns = append(columns, fmt.Sprintf("round trips/s, window %d", w), "CPU µs, server + load")
	}
	t := report.NewTable(append(columns, "KB per idle peer")...)
	for _, peers := range r.cfg.Peers {
		for _, name := range []string{echo, muster, libzmq, zmq4, musterCurve, libzmqCurve} {
			row := []string{name, fmt.Sprint(peers)}
			for _, window := range r.cfg.Windows {
				rate, cpu := r.cells(name, peers, window)
				row = append(row, rate, cpu)
			}
			if idle := r.leastIdle(name, peers); idle > 0 {
				t.Add(append(row, fmt.Sprintf("%.1f", idle/1024))...)
			}
		}
	}
	return t
}

// cells are the rate and the CPU time of a server, as people read them.
func (r *Results) cells(name string, peers, window int) (rate, cpu string) {
	samples := r.best(name, peers, window)
	rounds := median(rates(samples))
	if rounds == 0 {
		return "stalled", "–"
	}
	server, load := cpus(samples)
	return thousands(rounds), fmt.Sprintf("%.2f + %.2f", microseconds(median(server)), microseconds(median(load)))
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// thousands writes a number with commas, to a hundred.
func thousands(f float64) string {
	n := (int64(f) + 50) / 100 * 100
	if n < 1000 {
		return fmt.Sprint(n)
	}
	s := fmt.Sprintf("%03d", n%1000)
	for n /= 1000; n >= 1000; n /= 1000 {
		s = fmt.Sprintf("%03d,", n%1000) + s
	}
	return fmt.Sprintf("%d,%s", n, s)
}
