package agentd

import (
	"net"
	"time"

	"google.golang.org/protobuf/proto"
)

// Link is what the agent needs of one live connection; *bus.Peer is one.
type Link interface {
	Send(m proto.Message) error
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
