package bus

import (
	"errors"
	"strings"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// answer tells the peer what the callback of its message returned. An error
// ends the link.
func (p *Peer) answer(typ []byte, env *musterv1.Envelope, err error) error {
	var n *NackError
	hangUp := errors.Is(err, ErrHangUp)
	switch {
	case errors.As(err, &n):
		hangUp = hangUp || n.Reason == musterv1.Nack_REFUSED
	case hangUp:
	default:
		p.bus.log.warn("", "message not handled", "type", string(typ), "addr", p.Addr(), "err", err)
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

// nack counts a message that no callback could get, and tells the peer.
func (p *Peer) nack(reason string, typ []byte, env *musterv1.Envelope, r musterv1.Nack_Reason, detail string) {
	p.bus.metrics.refuse(reason)
	p.sendNack(typ, env, &NackError{Reason: r, Detail: detail})
}

const (
	maxNackType   = 128
	maxNackDetail = 1 << 10
)

var nackType = typeOf(&musterv1.Nack{})

// sendNack answers a message of type typ, unless it is itself a Nack.
func (p *Peer) sendNack(typ []byte, env *musterv1.Envelope, n *NackError) {
	if string(typ) == nackType {
		return
	}
	err := p.Reply(env, &musterv1.Nack{
		Type:   text(string(typ), maxNackType),
		Reason: n.Reason,
		Detail: text(n.Detail, maxNackDetail),
		Field:  text(n.Field, maxNackDetail),
	})
	if err != nil {
		p.bus.metrics.refuse("nack_dropped")
	}
}

// text makes a protobuf string of what may come from a peer.
func text(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "?")
}
