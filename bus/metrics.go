package bus

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what happens on the bus. Its labels come from us, never from
// a peer, so their number is bounded.
type metrics struct {
	refused   counters // connections and messages, by reason
	received  counters // messages, by type; "other" for types without callback
	sent      counters // messages, by type
	commands  counters // ZMTP commands after the handshake, by name
	handshake prometheus.Histogram
	waits     prometheus.Counter // for the receive budget
	peers     prometheus.Gauge
	queued    *queueGauge // of all send queues
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		refused:  newCounters(reg, "muster_bus_refused_total", "Connections, messages and commands refused.", "reason"),
		received: newCounters(reg, "muster_bus_received_total", "Messages received.", "type"),
		sent:     newCounters(reg, "muster_bus_sent_total", "Messages queued for a peer.", "type"),
		commands: newCounters(reg, "muster_bus_commands_total", "ZMTP commands received after the handshake.", "name"),
		handshake: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "muster_bus_handshake_seconds", Help: "Time of completed handshakes, from the accept or dial.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		})),
		waits: register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_bus_budget_waits_total", Help: "Messages that waited for the receive budget.",
		})),
		peers:  register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "muster_bus_peers", Help: "Links that are up."})),
		queued: register(reg, &queueGauge{queues: map[*outbox]struct{}{}}),
	}
}

// queueGauge is how much is in all send queues. It asks them when it is read: a
// number that every message moves twice, on all cores, would cost more.
type queueGauge struct {
	mu     sync.Mutex
	queues map[*outbox]struct{}
}

var (
	queueMessagesDesc = prometheus.NewDesc("muster_bus_queue_messages", "Messages in the send queues of all peers.", nil, nil)
	queueBytesDesc    = prometheus.NewDesc("muster_bus_queue_bytes", "Bytes in the send queues of all peers.", nil, nil)
)

func (q *queueGauge) enter(o *outbox) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queues[o] = struct{}{}
}

func (q *queueGauge) leave(o *outbox) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.queues, o)
}

func (q *queueGauge) sum() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for o := range q.queues {
		m, b := o.held()
		messages, bytes = messages+m, bytes+b
	}
	return messages, bytes
}

// Describe implements prometheus.Collector.
func (q *queueGauge) Describe(to chan<- *prometheus.Desc) {
	to <- queueMessagesDesc
	to <- queueBytesDesc
}

// Collect implements prometheus.Collector.
func (q *queueGauge) Collect(to chan<- prometheus.Metric) {
	messages, bytes := q.sum()
	to <- prometheus.MustNewConstMetric(queueMessagesDesc, prometheus.GaugeValue, float64(messages))
	to <- prometheus.MustNewConstMetric(queueBytesDesc, prometheus.GaugeValue, float64(bytes))
}

func (m *metrics) refuse(reason string) { m.refused.count(reason) }

// refuseError counts err, if it is a peer's breach of the rules.
func (m *metrics) refuseError(err error) {
	if r := new(refusal); errors.As(err, &r) {
		m.refuse(r.reason)
	}
}

// register adds c to reg, which may be nil. A second Router or Dealer on the
// same registry counts on the collectors of the first.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	var have prometheus.AlreadyRegisteredError
	if err := reg.Register(c); errors.As(err, &have) {
		if old, ok := have.ExistingCollector.(C); ok {
			return old
		}
	} else if err != nil {
		panic("bus: " + err.Error())
	}
	return c
}

// counters is a counter vector with one label and a cache before it: the
// vector's own lookup hashes and locks for every message.
type counters struct {
	vec   *prometheus.CounterVec
	cache *counterCache
}

type counterCache struct {
	known atomic.Pointer[map[string]prometheus.Counter]
	mu    sync.Mutex // held by who adds to known
}

func newCounters(reg prometheus.Registerer, name, help, label string) counters {
	vec := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label}))
	c := counters{vec: vec, cache: &counterCache{}}
	c.cache.known.Store(&map[string]prometheus.Counter{})
	return c
}

func (c counters) count(label string) { c.of(label).Inc() }

// of is the counter for a label.
func (c counters) of(label string) prometheus.Counter {
	if n := (*c.cache.known.Load())[label]; n != nil {
		return n
	}
	return c.add(label)
}

func (c counters) add(label string) prometheus.Counter {
	c.cache.mu.Lock()
	defer c.cache.mu.Unlock()
	known := maps.Clone(*c.cache.known.Load())
	n := c.vec.WithLabelValues(label)
	known[label] = n
	c.cache.known.Store(&known)
	return n
}
