package bus

import (
	"fmt"
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Mux calls the function that was registered for a message's type. Register
// everything before the first Serve or Run; after that it must not change.
type Mux struct {
	handlers map[string]handler
	limits   map[string]int // bytes of a body, by type

	// Up is called once for each link, before its first message, and Down once
	// after its last, with the reason why it ended. Both run where callbacks
	// run, and both may be nil.
	Up   func(p *Peer)
	Down func(p *Peer, err error)
}

// handler decodes a body and hands it on. It tells an undecodable body from
// what the callback says by malformed.
type handler func(p *Peer, env *musterv1.Envelope, body []byte) (malformed bool, err error)

// fresh decodes into a new message, which need not be emptied first.
var fresh = proto.UnmarshalOptions{Merge: true}

// NewMux returns a Mux without callbacks.
func NewMux() *Mux { return &Mux{handlers: map[string]handler{}, limits: map[string]int{}} }

// Handle registers fn for messages of type M. A second one for a type panics.
//
// fn runs on the peer's reader and must not wait for anything slow. env is
// never nil and must not be changed; fn may keep env and m. When fn returns a *NackError, the peer
// is sent that Nack; when the error wraps ErrHangUp, the link is closed after
// what is queued was sent; any other error is logged and answered with Nack
// INVALID.
func Handle[M interface {
	*T
	proto.Message
}, T any](mux *Mux, fn func(p *Peer, env *musterv1.Envelope, m M) error) {
	name := typeOf(M(new(T)))
	if mux.handlers[name] != nil {
		panic("bus: two callbacks for " + name)
	}
	mux.handlers[name] = func(p *Peer, env *musterv1.Envelope, body []byte) (bool, error) {
		m := M(new(T))
		if err := fresh.Unmarshal(body, m); err != nil {
			return true, err
		}
		return false, fn(p, env, m)
	}
}

// Limit bounds the bodies of messages like m, in bytes. A larger one is not
// decoded, for it may become many times its size; it is answered with Nack
// INVALID. Without a limit a body may be as large as its message.
func (mux *Mux) Limit(m proto.Message, bytes int) { mux.limits[typeOf(m)] = bytes }

// route is where the messages of a type go.
type route struct {
	call     handler
	limit    int // bytes of a body
	received prometheus.Counter
}

// routes are all there is to know of the types that have a callback, in one
// place: it is looked up for every message.
func (mux *Mux) routes(m *metrics) map[string]*route {
	routes := map[string]*route{}
	for name, call := range mux.handlers {
		limit, ok := mux.limits[name]
		if !ok {
			limit = math.MaxInt
		}
		routes[name] = &route{call: call, limit: limit, received: m.received.of(name)}
	}
	return routes
}

var emptyEnvelope = &musterv1.Envelope{}

// dispatch hands one message to its callback and answers what cannot be
// handled. An error ends the link.
func dispatch(p *Peer, m *message) error {
	typ, env := m.frame(0), emptyEnvelope
	if m.frames != 3 {
		p.nack("frames", typ, nil, musterv1.Nack_MALFORMED, fmt.Sprintf("a message has 3 frames, this one %d", m.frames))
		return nil
	}
	if b := m.frame(1); len(b) > 0 {
		env = &musterv1.Envelope{}
		if err := fresh.Unmarshal(b, env); err != nil {
			p.nack("envelope", typ, nil, musterv1.Nack_MALFORMED, "envelope: "+err.Error())
			return nil
		}
	}
	r := p.bus.routes()[string(typ)]
	if r == nil {
		p.bus.metrics.received.count("other")
		p.nack("unknown_type", typ, env, musterv1.Nack_UNKNOWN_TYPE, "no callback for this type")
		return nil
	}
	r.received.Inc()
	if len(m.frame(2)) > r.limit {
		p.nack("body_size", typ, env, musterv1.Nack_INVALID, fmt.Sprintf("body of %d bytes, limit %d", len(m.frame(2)), r.limit))
		return nil
	}
	malformed, err := r.call(p, env, m.frame(2))
	switch {
	case malformed:
		p.nack("body", typ, env, musterv1.Nack_MALFORMED, "body: "+err.Error())
		return nil
	case err != nil:
		return p.answer(typ, env, err)
	}
	return nil
}
