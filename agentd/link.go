package agentd

import (
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Link is what the agent needs of one live connection. Two are the same when
// they are equal.
type Link interface {
	Send(m proto.Message) error
	Ask(id string, m proto.Message) error // Send with an id that an answer will name
	Reply(to *musterv1.Envelope, m proto.Message) error
	Promote()
	Close(cause error)
	Drained() <-chan struct{}
	Done() <-chan struct{}
	Addr() net.Addr
}

// Dealer is what the agent tells whoever makes the connections; *bus.Dealer is one.
type Dealer interface {
	SetReconnectWindow(time.Duration)
	HoldOff(time.Duration)
}

// peer is a connection of the bus as a Link.
type peer struct{ *bus.Peer }

// maxEnvelopeID is the longest id that an envelope may have.
const maxEnvelopeID = 64

func (p peer) Ask(id string, m proto.Message) error {
	if len(id) > maxEnvelopeID { // no coordinator makes ids of that length
		return p.Send(m)
	}
	f, err := bus.Seal(&musterv1.Envelope{Id: id}, m)
	if err != nil {
		return err
	}
	return p.SendFrames(f)
}

var _ Link = peer{}
var _ Dealer = (*bus.Dealer)(nil)
