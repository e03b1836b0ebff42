package bus

import (
	"fmt"

	"github.com/musterhq/muster/scripts/benchmark/report"
)

// bar is a ratio that we want to reach.
type bar struct {
	ours, theirs string
	window       int
	least        float64
}

var bars = []bar{
	{muster, libzmq, 1, 1.2},
	{muster, libzmq, 20, 1.3},
	{muster, echo, 1, 0.65},
	{musterCurve, libzmqCurve, 1, 1.0},
	{musterCurve, libzmqCurve, 20, 1.0},
}

// Bars is a table of the ratios with bars, and the number of those missed. What
// was not measured is left out.
func (r *Results) Bars() (t *report.Table, missed int) {
	t = report.NewTable("ratio", "peers", "window", "median", "by CPU", "bar", "")
	for _, peers := range r.cfg.Peers {
		for _, b := range bars {
			if r.best(b.ours, peers, b.window) == nil || r.best(b.theirs, peers, b.window) == nil {
				continue
			}
			ratio, verdict := r.ratio(b.ours, b.theirs, peers, b.window), "reached"
			if ratio < b.least {
				verdict = "missed"
				missed++
			}
			byCPU := r.ratioByCPU(b.ours, b.theirs, peers, b.window)
			t.Add(b.ours+" / "+b.theirs, fmt.Sprint(peers), fmt.Sprint(b.window),
				fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%.2f", byCPU), fmt.Sprintf("≥ %.2f", b.least), verdict)
		}
	}
	return t, missed
}
