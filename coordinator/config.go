package coordinator

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a person may turn. The zero value of each field is its default.
type Config struct {
	HeartbeatInterval time.Duration // shortest interval told to agents (10s); grows with the fleet to keep 2,000 beats a second
	OfflineAfter      time.Duration // silence after which an agent is OFFLINE (5m), never under 3 intervals + 5s
	ReconnectWindow   time.Duration // agents whose link broke come back at a random moment within it (2s)
	Grace             time.Duration // added to expiry + timeout before a sent target is LOST (1m)
	ResendAfter       time.Duration // an unanswered command is sent again on a live link (30s)
	InFlight          int           // commands sent to one agent and not final (64)
	Backlog           int           // reports waiting to be stored; more are not acknowledged (16,384)
	BacklogBytes      int           // their bytes (64 MiB)
	MaxAgents         int           // known agents; further ids are refused (100,000)
	KeepFor           time.Duration // ended commands are kept that long (90 days) …
	KeepCommands      int           // … unless there are more of them (1,000,000) …
	KeepBytes         int64         // … or the store holds more bytes (64 GiB)
	EventHistory      int           // events kept for readers that resume (16,384)

	ForgetAfter   time.Duration // agents OFFLINE for longer are deleted, when nothing waits for them (30 days); negative: never
	CancelOffline bool          // what was never sent to an agent that goes OFFLINE is CANCELLED, whatever the command's when_offline (N17)

	Now     func() time.Time      // the wall clock, for what is stored and shown (time.Now); timers do not follow it
	Log     *slog.Logger          // (discard)
	Metrics prometheus.Registerer // (counted, not registered)
}

func (c Config) withDefaults() Config {
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, 10*time.Second)
	c.OfflineAfter = max(cmp.Or(c.OfflineAfter, 5*time.Minute), 3*c.HeartbeatInterval+min(5*time.Second, c.HeartbeatInterval))
	c.ReconnectWindow = cmp.Or(c.ReconnectWindow, 2*time.Second)
	c.Grace = cmp.Or(c.Grace, time.Minute)
	c.ResendAfter = cmp.Or(c.ResendAfter, 30*time.Second)
	c.InFlight = cmp.Or(c.InFlight, 64)
	c.Backlog = cmp.Or(c.Backlog, 16384)
	c.BacklogBytes = cmp.Or(c.BacklogBytes, 64<<20)
	c.MaxAgents = cmp.Or(c.MaxAgents, 100_000)
	c.KeepFor = cmp.Or(c.KeepFor, 90*24*time.Hour)
	c.KeepCommands = cmp.Or(c.KeepCommands, 1_000_000)
	c.KeepBytes = cmp.Or(c.KeepBytes, 64<<30)
	c.EventHistory = cmp.Or(c.EventHistory, 16384)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, 30*24*time.Hour)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
