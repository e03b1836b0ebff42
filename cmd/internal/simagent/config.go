package simagent

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Config is what a Fleet is made of. The zero value of each field means its
// default, given in brackets.
type Config struct {
	Agents int               // how many (none)
	Prefix string            // agent ids are this and a number of five digits or more ("sim-")
	Tags   map[string]string // of every agent (none)
	Types  []string          // command types that they can run (exec, ping)

	// Dial opens the connection of agent n, counted from 0. It must be set.
	Dial func(ctx context.Context, n int) (net.Conn, error)
	// Handshakes is how many links are set up at one time (256).
	Handshakes int

	BeatInterval time.Duration // between two heartbeats, ±10 % (as the coordinator says)
	Delay        time.Duration // from the start of a command to its end (none)
	ResultSize   int           // bytes of JSON that a command gives as its result (none)
	OutputSize   int           // bytes that it writes to stdout (none)
	Fail         float64       // share of commands that end FAILED (none)
	Vanish       float64       // share of commands at which the agent leaves for ever, without a word (none)

	Brief bool // tell only how commands end, not that they run
	Spare int  // commands at first that neither fail nor make an agent vanish, so that canaries get through (none)

	// OnConfig says what an agent makes of a config that it is offered for the
	// first time, or again after it FAILED. It may be called for many agents at
	// once, and may ask the Fleet (nil: the agents take no configs).
	OnConfig func(Offered) Answer

	Log *slog.Logger // (discard)
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "sim-"
	}
	if c.Types == nil {
		c.Types = []string{"exec", "ping"}
	}
	if c.Handshakes == 0 {
		c.Handshakes = 256
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
