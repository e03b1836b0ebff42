package coordinator

import "github.com/prometheus/client_golang/prometheus"

// configMetrics counts what happens to configs.
type configMetrics struct {
	offers    prometheus.Counter
	encodings prometheus.Counter
	statuses  prometheus.Counter
	refused   prometheus.Counter
}

func newConfigMetrics(reg prometheus.Registerer) *configMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &configMetrics{
		offers:    counter("muster_coordinator_config_offers_total", "Offers of configs handed to an agent's link, repeats included."),
		encodings: counter("muster_coordinator_config_encodings_total", "Offers that were encoded; each serves all the agents that get it."),
		statuses:  counter("muster_coordinator_config_statuses_total", "Statuses of configs that agents told by themselves."),
		refused:   counter("muster_coordinator_config_refused_total", "Messages with statuses of configs that cannot be."),
	}
	if reg != nil {
		reg.MustRegister(m.offers, m.encodings, m.statuses, m.refused)
	}
	return m
}
