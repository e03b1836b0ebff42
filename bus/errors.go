package bus

import (
	"errors"
	"fmt"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var (
	// ErrNoPeer means that the link is gone, or is being closed.
	ErrNoPeer = errors.New("bus: no such peer")
	// ErrQueueFull means that the peer is there but does not keep up; see Peer.Drained.
	ErrQueueFull = errors.New("bus: peer queue full")
	// ErrLeaving, wrapped by what a link is closed with, says that its end is meant
	// and no failure.
	ErrLeaving = errors.New("bus: leaving")
	// ErrHangUp, returned or wrapped by a callback, closes the link once what is queued was sent.
	ErrHangUp = errors.New("bus: hang up")
)

// NackError, returned by a callback, is answered with that Nack. The link
// stays open, unless the reason is REFUSED or the error also wraps ErrHangUp.
type NackError struct {
	Reason musterv1.Nack_Reason
	Detail string // for a person
	Field  string // path of the field that breaks a rule
}

func (e *NackError) Error() string {
	s := e.Reason.String()
	if e.Field != "" {
		s += " " + e.Field
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// refusal is a peer's breach of the rules of the wire, which ends its link.
type refusal struct {
	reason string // label of muster_bus_refused_total
	detail string // for a person
}

func (r *refusal) Error() string { return r.detail }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason: reason, detail: fmt.Sprintf(format, args...)}
}
