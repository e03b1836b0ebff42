package bus

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Mux calls the function that was registered for a message's type. Register
// everything before the first Serve or Run; after that it must not change.
type Mux struct {
	handlers map[string]handler

	// Up is called once for each link, before its first message, and Down once
	// after its last, with the reason why it ended. Both run where callbacks
	// run, and both may be nil.
	Up   func(p *Peer)
	Down func(p *Peer, err error)
}

// handler decodes a body and hands it on. It tells an undecodable body from
// what the callback says by malformed.
type handler func(p *Peer, env *musterv1.Envelope, body []byte) (malformed bool, err error)

// NewMux returns a Mux without callbacks.
func NewMux() *Mux { return &Mux{handlers: map[string]handler{}} }

// Handle registers fn for messages of type M. A second one for a type panics.
//
// fn runs on the peer's reader and must not wait for anything slow. env is
// never nil, and fn may keep env and m. When fn returns a *NackError, the peer
// is sent that Nack; when the error wraps ErrHangUp, the link is closed after
// what is queued was sent; any other error is logged and answered with Nack
// INVALID.
func Handle[M proto.Message](mux *Mux, fn func(p *Peer, env *musterv1.Envelope, m M) error) {
	var zero M
	typ := zero.ProtoReflect().Type()
	name := string(typ.Descriptor().FullName())
	if mux.handlers[name] != nil {
		panic("bus: two callbacks for " + name)
	}
	mux.handlers[name] = func(p *Peer, env *musterv1.Envelope, body []byte) (bool, error) {
		m := typ.New().Interface().(M)
		if err := proto.Unmarshal(body, m); err != nil {
			return true, err
		}
		return false, fn(p, env, m)
	}
}

// dispatch hands one message to its callback and answers what cannot be
// handled. An error ends the link.
func (mux *Mux) dispatch(p *Peer, m *message) error {
	typ, env := m.frame(0), &musterv1.Envelope{}
	if m.frames != 3 {
		return p.nack("frames", typ, env, musterv1.Nack_MALFORMED, fmt.Sprintf("a message has 3 frames, this one %d", m.frames))
	}
	if b := m.frame(1); len(b) > 0 {
		if err := proto.Unmarshal(b, env); err != nil {
			return p.nack("envelope", typ, &musterv1.Envelope{}, musterv1.Nack_MALFORMED, "envelope: "+err.Error())
		}
	}
	h := mux.handlers[string(typ)]
	if h == nil {
		p.bus.metrics.received.count("other")
		return p.nack("unknown_type", typ, env, musterv1.Nack_UNKNOWN_TYPE, "no callback for this type")
	}
	p.bus.metrics.received.countBytes(typ)
	malformed, err := h(p, env, m.frame(2))
	if malformed {
		return p.nack("body", typ, env, musterv1.Nack_MALFORMED, "body: "+err.Error())
	}
	if err == nil {
		return nil
	}
	return mux.answer(p, typ, env, err)
}

// answer tells the peer what its callback returned.
func (mux *Mux) answer(p *Peer, typ []byte, env *musterv1.Envelope, err error) error {
	var n *NackError
	hangUp := errors.Is(err, ErrHangUp)
	switch {
	case errors.As(err, &n):
		hangUp = hangUp || n.Reason == musterv1.Nack_REFUSED
	case hangUp:
	default:
		p.bus.cfg.Log.Warn("message not handled", "type", string(typ), "addr", p.Addr(), "err", err)
		n = &NackError{Reason: musterv1.Nack_INVALID, Detail: err.Error()}
	}
	if n != nil {
		p.bus.metrics.refuse("callback_" + strings.ToLower(n.Reason.String()))
		p.sendNack(typ, env, n)
	}
	if hangUp {
		return err
	}
	return nil
}
