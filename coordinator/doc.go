// Package coordinator decides what agents should do and remembers what they did.
//
// The store is the truth. A request ends when it is stored; loops that watch
// the store bring it to the agents; what agents answer goes through the batcher
// into the store, is acknowledged when it is durable, and whoever watches sees
// it there.
//
//	down: CreateCommand → store → watch → ledger → dispatch → bus → agent
//	up:   agent → bus → batcher → store → watch → ledger → feed → WatchEvents
//
// A command to agents that are all idle is not kept waiting for the watch, which
// finds it in the ledger then (sentatonce.go).
//
// What agents shall hold goes another way, by difference: bindings, groups and
// rollouts say what an agent shall hold, it says what it holds, and what is
// different is offered to it.
//
//	down: PutConfig, PutGroup, CreateConfigRollout → store → configFollower →
//	      groups, catalog, configRollouts → desired → offers → bus → agent
//	up:   Register, ConfigFeedback → holdings → batcher → store
//
// The ledger holds every open command with one state per target, the fleet
// every known agent with its session; both are rebuilt from the store when the
// coordinator starts. So are the catalog of configs, the groups, and what each
// agent holds. Nothing else that must survive is in memory.
//
// A link has a session until it ends, and an agent from its Register on. Two
// processes with one agent id are told apart in clone.go. Silence is judged by
// one timer per agent, on the monotonic clock; what is stored or shown takes
// its time from Config.Now, and from nowhere else but the first token, which is
// made before there is a coordinator: a clock which is set moves nothing but
// stamps. What is destructive follows OFFLINE, never SUSPECT. forget.go is
// where an agent is taken out of all of this.
//
// The rooms, and the files in each:
//
//   - the whole: coordinator, config (what a person may turn), serve (gRPC),
//     direct (the same, without a socket), heap, token, errors, metrics, quietlog,
//     allowance, etag, page
//   - the store: keys (all there are), row, rowcheck, batcher, id, idempotency,
//     load (reads it), follow (its history, as it is written), position
//   - links: session, registration, clone, keyring, approval, drain
//   - agents: fleet, agents (the service), presence, journals, forget
//   - commands on their way down: commands (the service), commandlist, check,
//     submit, sentatonce, ledger, queue, claim, dispatch, rollout, control, settle
//   - and what comes up: report, packs (how final Targets are stored), results (how
//     they are found again), fresh, acker, output, feed, events
//   - what is kept of commands that have ended: ended, export, retention
//   - groups: group, membership, selector, groupservice
//   - configs as they are put: configservice, configcheck, configversion,
//     configcontent, configdiff, configpreview, configtidy
//   - what agents shall hold: configfollow, catalog, bindings, instance (the
//     merged document), desired
//   - what they are offered and hold: configs, worklist, offer, offerings, fetch,
//     holding, feedback, configstatus, configmetrics
//   - rollouts of configs: cfgrollout, cfgrolloutservice, cfgrolloutlist,
//     cfgrolloutplan, cfgrolloutloop, cfgrolloutagent, cfgrolloutcounts,
//     cfgrollouttidy
//
// The promises: a command that is not idempotent is started at most once on an
// agent that keeps its journal, and every target becomes final, at the latest at
// expiry + timeout + grace. Those of rollouts are with configRollouts.
package coordinator
