package bus

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config holds what a Router and a Dealer have in common.
// The zero value of each field means its default, given in brackets.
type Config struct {
	Identity        string                // own ZeroMQ identity, a hint only (empty)
	Handshake       time.Duration         // for a handshake in all, counted from the accept (5s)
	MaxHandshaking  int                   // handshakes in progress at a Router (512)
	MaxUnregistered int                   // bytes per frame and per message before Promote (64 KiB)
	MaxMessage      int                   // bytes per frame and per message after it (8 MiB)
	MaxFrames       int                   // frames per message (8)
	ReceiveBudget   int64                 // bytes of large messages under way, all peers together; then readers wait (256 MiB)
	QueueMessages   int                   // messages queued per peer (256)
	QueueBytes      int                   // bytes queued per peer; one message alone may be larger (8 MiB)
	WriteStall      time.Duration         // a peer that takes nothing for this long is cut (10s)
	MessageTime     time.Duration         // for one message under way (30s)
	Log             *slog.Logger          // (discard)
	Metrics         prometheus.Registerer // where counters are registered; they count without it (nil)
}

func (c Config) withDefaults() Config {
	c.Handshake = cmp.Or(c.Handshake, 5*time.Second)
	c.MaxHandshaking = cmp.Or(c.MaxHandshaking, 512)
	c.MaxUnregistered = cmp.Or(c.MaxUnregistered, 64<<10)
	c.MaxMessage = cmp.Or(c.MaxMessage, 8<<20)
	c.MaxFrames = cmp.Or(c.MaxFrames, 8)
	c.ReceiveBudget = cmp.Or(c.ReceiveBudget, 256<<20)
	c.QueueMessages = cmp.Or(c.QueueMessages, 256)
	c.QueueBytes = cmp.Or(c.QueueBytes, 8<<20)
	c.WriteStall = cmp.Or(c.WriteStall, 10*time.Second)
	c.MessageTime = cmp.Or(c.MessageTime, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
