// Package bus carries typed protobuf messages between a router and its dealers
// over ZeroMQ (ZMTP 3) connections.
//
// There are four types to know. A [Router] accepts peers. A [Dealer] keeps one
// connection to one of several routers, for ever. A [Mux] calls the function
// that was registered for a message's type. A [Peer] is one live connection:
// it is what a callback gets, what messages are sent to, and what ends when the
// link ends. A send is addressed to a Peer and to nothing else: the ZeroMQ
// identity is a hint that anybody can claim.
//
// # Messages
//
// A message is three ZeroMQ frames: the full protobuf name of the body, a
// muster.v1.Envelope (often empty), and the body. A message that has another
// number of frames or does not parse is answered with Nack MALFORMED, one of
// an unknown type with Nack UNKNOWN_TYPE, and a Nack with nothing. None of it
// closes the link, for agents and coordinators are upgraded at different times.
//
// # Goroutines
//
// A peer's callbacks run on its reader: in order and alone for one peer, in
// parallel across peers. A slow callback slows its own peer only. Sending never
// blocks: it queues the message or says why it cannot, and a peer whose queue
// is not read is cut. Serve and Run return when everything they started has
// ended.
//
// # The guard
//
// Whoever can reach the port may cost a bounded amount of memory for a bounded
// time, and nothing else. zmq4.Open does the handshake, over a net.Conn of ours
// (see guard.go) that gives it only bytes which were checked before: greeting,
// size and kind of each command, metadata. After the handshake zmq4 is let go
// of, and frames are read and written here (receive.go, writer.go): that is less
// code than to tame its reader, and faster. The rules:
//
//   - The greeting must have the ZMTP signature, version 3.0 or higher, the
//     listener's own mechanism padded with zeros, and the as-server bit of the
//     mechanism (with NULL: 0). We always answer as 3.1.
//   - The handshake takes [Config].Handshake in all, counted from the accept. A
//     command in it has 4 KiB at most. When all places for handshakes are
//     taken, the oldest of them keeps its place for a fifth of that time only.
//   - Metadata: no property twice (in any case of letters), a Socket-Type of
//     DEALER at a router and ROUTER at a dealer, an Identity of at most 255
//     bytes that does not begin with a zero byte; it may be empty.
//   - A frame and the sum of a message have [Config].MaxMessage bytes at most,
//     and MaxUnregistered as long as the peer of a Router was not promoted. A
//     message has MaxFrames frames. One that breaks these is told so by a Nack,
//     and cut.
//   - Reserved flag bits and commands with the MORE bit are cut.
//   - Commands never reach a callback. PING is answered by a PONG with its
//     context, the latest one when several wait; a TTL in it is held against
//     the peer. Commands of the handshake (READY, ERROR, HELLO, WELCOME,
//     INITIATE, MESSAGE) are cut when they come after it, and every other
//     command is counted and ignored, also between the frames of a message.
//   - A message under way has MessageTime to arrive. A peer that takes nothing
//     for WriteStall is cut. A deadline that passed while the process was
//     stopped does not count against bytes that had arrived by then.
//   - A TCP peer that is gone without a word is noticed by the kernel within
//     30 s (TCP_USER_TIMEOUT and keepalive).
//
// Everything refused is counted by its reason in muster_bus_refused_total.
package bus
