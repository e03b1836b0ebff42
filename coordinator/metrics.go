package coordinator

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what an operator should see. What is dropped is sent again by
// its sender.
type metrics struct {
	drops   *prometheus.CounterVec
	repeats prometheus.Counter
	sends   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_coordinator_dropped_total", Help: "Messages not stored or not acknowledged, by what they were.",
		}, []string{"what"}),
		repeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_coordinator_repeated_reports_total", Help: "Final reports that were stored before.",
		}),
		sends: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_coordinator_commands_sent_total", Help: "Commands handed to an agent's link, repeats included.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.drops, m.repeats, m.sends)
	}
	return m
}

func (m *metrics) dropped(what string) { m.drops.WithLabelValues(what).Inc() }
func (m *metrics) repeated()           { m.repeats.Inc() }
func (m *metrics) sent()               { m.sends.Inc() }
