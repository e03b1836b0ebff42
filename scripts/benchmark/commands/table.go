package commands

import (
	"fmt"
	"time"

	"github.com/musterhq/muster/scripts/benchmark/report"
)

// Row is one thing measured.
type Row struct {
	What     string
	Measured string
	Against  string // what it is compared with, or what else is to be known
	Ratio    string
	ByCPU    string
	Bar      string
	Reached  bool
}

// Results are what was measured, in the order of the report.
type Results []Row

func (r *Results) add(row Row) { *r = append(*r, row) }

// compare adds how much longer ours takes than theirs.
func (r *Results) compare(what string, ours, theirs *contestant, bar float64) {
	wall, cpu := ours.against(theirs)
	r.add(Row{What: what,
		Measured: fmt.Sprintf("%.0f ms", millis(median(ours.walls()))), Against: fmt.Sprintf("%.0f ms", millis(median(theirs.walls()))),
		Ratio: fmt.Sprintf("%.2f", wall), ByCPU: fmt.Sprintf("%.2f", cpu),
		Bar: fmt.Sprintf("≤ %.2f ×", bar), Reached: wall <= bar})
}

// rate adds how many of n things a second ours does, as a share of theirs.
func (r *Results) rate(what string, ours, theirs *contestant, n int, bar float64) {
	wall, cpu := theirs.against(ours)
	perSecond := func(c *contestant) string { return fmt.Sprintf("%.0f/s", float64(n)/median(c.walls()).Seconds()) }
	r.add(Row{What: what, Measured: perSecond(ours), Against: perSecond(theirs),
		Ratio: fmt.Sprintf("%.2f", wall), ByCPU: fmt.Sprintf("%.2f", cpu),
		Bar: fmt.Sprintf("≥ %.2f ×", bar), Reached: wall >= bar})
}

// start adds a quantile of a time that holds four syncs of the disk.
func (r *Results) start(what string, took, sync, bar time.Duration) {
	text := fmt.Sprintf("≤ %.1f ms", millis(bar))
	if slow := 4*sync + time.Millisecond; slow > bar {
		bar, text = slow, fmt.Sprintf("≤ %.1f ms (4 syncs + 1 ms)", millis(slow))
	}
	r.add(Row{What: what, Measured: fmt.Sprintf("%.2f ms", millis(took)), Against: fmt.Sprintf("%.2f ms a sync", millis(sync)),
		Bar: text, Reached: took <= bar})
}

// Table shows the results, and the number of bars missed.
func (r Results) Table() (t *report.Table, missed int) {
	t = report.NewTable("what", "measured", "against", "ratio", "by CPU", "bar", "")
	for _, row := range r {
		verdict := "reached"
		if !row.Reached {
			verdict = "missed"
			missed++
		}
		t.Add(row.What, row.Measured, row.Against, row.Ratio, row.ByCPU, row.Bar, verdict)
	}
	return t, missed
}
