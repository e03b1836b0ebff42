package simagent

import (
	"runtime/metrics"
	"time"
)

// Report is how a Fleet is, or how it was just before Run ended.
type Report struct {
	Agents  int
	Running time.Duration

	Connected     int64 // links that are up
	Registered    int64 // of them
	Registrations int64 // links on which an agent was registered, in all

	Commands  int64 // received, each once
	Repeats   int64 // copies of one that was received before; not started again
	Answered  int64 // with a final state
	Failed    int64 // of them
	Cancelled int64 // of the answered ones
	Vanished  int64 // agents that left for ever, at a command or a config
	Acked     int64 // answers that the coordinator says it stored
	Resent    int64 // answers that were sent again on a live link
	Chunks    int64 // of output

	Beats, BeatAcks int64

	Offers  int64 // of configs, repeats too
	Pieces  int64 // of content that was fetched
	Applied int64 // configs
	Refused int64 // configs that FAILED

	Register Times // from a link to the answer to its Register
	Beat     Times // from a heartbeat to its answer
	Ack      Times // from the first telling of a final state to its acknowledgement

	Errors map[string]int64 // by kind; nil: none
	Memory int64            // bytes that this process holds, all its agents together
}

// Report may be called at any time, before, while and after Run runs.
func (f *Fleet) Report() Report {
	f.mu.Lock()
	last, started := f.last, f.started
	f.mu.Unlock()
	if last != nil {
		return *last
	}
	t := &f.tally
	r := Report{
		Agents:    len(f.agents),
		Connected: t.connected.Load(), Registered: t.registered.Load(), Registrations: t.registrations.Load(),
		Commands: t.commands.Load(), Repeats: t.repeats.Load(),
		Answered: t.answered.Load(), Failed: t.failed.Load(), Cancelled: t.cancelled.Load(), Vanished: t.vanished.Load(),
		Acked: t.acked.Load(), Resent: t.resent.Load(), Chunks: t.chunks.Load(),
		Beats: t.beats.Load(), BeatAcks: t.beatAcks.Load(),
		Offers: t.offers.Load(), Pieces: t.pieces.Load(), Applied: t.applied.Load(), Refused: t.refused.Load(),
		Register: t.register.times(), Beat: t.beat.times(), Ack: t.ack.times(),
		Errors: t.failures(), Memory: memory(),
	}
	if !started.IsZero() {
		r.Running = time.Since(started)
	}
	return r
}

// memory is what the runtime has taken from the system and not given back.
func memory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
