// Package simagent simulates agents, many in one process, to load a coordinator.
//
// There are three types to know. A Fleet is so many agents that Run keeps
// connected. Its Config says how they behave, also when they shall misbehave. A
// Report says how it went.
//
// A simulated agent keeps the agent's side of the protocol: it registers on every
// link, beats as it was told, answers commands with RUNNING, if they take 20 ms or
// more, and a final state, sends a final state again until it is acknowledged, and
// comes back after a broken link at a random moment. It takes the configs that it
// is offered, and makes of them what the Config says. It runs nothing: a command
// takes the time that the Config says, and any number of them go on at once. Its
// journal is memory, so a new Fleet has new journals, and says so by their epoch.
// Within one Fleet an id that was seen is not started again.
//
// # Why it has a client of its own
//
// A bus.Dealer is made for one agent in a process. It costs about 20 KiB of resident
// memory, most of it counters, and up to two goroutines. Here the coordinator shares the machine
// with ten thousand of them, so each is to cost little memory and few wake-ups:
// one goroutine that waits for bytes, one timer, a receive buffer of half a
// kilobyte and, while there is something to send, a buffer from a pool. What
// comes in together is answered in one write. An idle agent is 1.6 KiB of heap and
// a stack of 4 KiB, about 7 KiB of resident memory.
//
// It trusts its coordinator more than package bus does: sizes are bounded, and
// that is all. It does not speak CURVE: that wants an approved key for each agent.
package simagent
