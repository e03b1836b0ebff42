package agentd

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what an operator would ask about.
type metrics struct {
	ended          *prometheus.CounterVec // by final state
	busy           prometheus.Counter
	repeats        prometheus.Counter
	resends        prometheus.Counter
	outputCut      prometheus.Counter
	reportsRefused prometheus.Counter
	journalErrors  prometheus.Counter
	journalDamaged prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "muster_agent_" + name, Help: help})
	}
	m := &metrics{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_agent_commands_total", Help: "Commands that ended, by final state."}, []string{"state"}),
		busy:           counter("busy_total", "Commands answered with Busy."),
		repeats:        counter("repeats_total", "Copies of commands that were here already."),
		resends:        counter("resends_total", "Final targets sent again because no ack came."),
		outputCut:      counter("output_lost_total", "Kept output that could not be stored or read."),
		reportsRefused: counter("reports_refused_total", "Final targets that the coordinator found invalid."),
		journalErrors:  counter("journal_errors_total", "Writes to the journal that failed."),
		journalDamaged: counter("journal_damaged_total", "Starts that found the journal damaged."),
	}
	if r != nil {
		r.MustRegister(m.ended, m.busy, m.repeats, m.resends, m.outputCut, m.reportsRefused, m.journalErrors, m.journalDamaged)
	}
	return m
}
