// Package commands measures what commands and sessions cost, end to end: a
// coordinator, some thousand simulated agents, and REST.
//
// Everything runs in processes of its own: `muster up` as people run it, the same
// path with the store in memory (for what the disk costs), a NATS server with as
// many subscribers (for what such a fan-out costs elsewhere), the agents, and one
// real muster-agentd. This process submits, waits and reads clocks.
//
// There are two kinds of simulated agents. Where commands are measured they are
// written by hand and do no more than they must, as the NATS subscribers are; such
// an agent is a goroutine with a socket (leanagent.go). Where sessions are measured
// they are on real Dealers, since how those come back is what is measured
// (dealeragent.go).
package commands
