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
// # Security
//
// [Null] is for loopback and ipc. With CURVE (RFC 26) everything is encrypted, and
// each side has a key pair: [NewKeyPair] makes one, [ParsePublicKey] and
// [ParseSecretKey] read one from Z85. A Dealer knows its router by its public key:
//
//	bus.NewDealer(cfg, mux, endpoints, bus.CurveClient(secret, serverKey), nil)
//
// and a Router asks for each new connection who may come in:
//
//	router.Serve(ctx, ln, bus.CurveServer(secret, func(c bus.Candidate) (identity string, err error) {
//		return agents.byKey(c.Key) // or an error: not now
//	}))
//
// Serve may run for several listeners, each with its own Security; none of them
// falls back to another. Who is refused is closed without a word, because a peer
// that gets ERROR must not come again, and a key may be approved later. So a
// Dealer can only guess why it was closed, and logs its guess: a wrong server key,
// or an own key that nobody has approved. It backs off and never gives up, also
// when it gets ERROR, which anybody on the way can send. Whoever takes a key away
// closes the Peers that have it. Every libzmq with CURVE is understood, in both
// directions.
//
// # Goroutines
//
// A peer's callbacks run on its reader: in order and alone for one peer, in
// parallel across peers. A slow callback slows its own peer only. Sending never
// blocks: it queues the message or says why it cannot, and a peer whose queue
// is not read is cut. Serve and Run return when everything they started has
// ended. A panic in a callback, or in what CurveServer asks, is logged with its
// stack, counted as "panic", and ends the link it was for.
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
//     listener's own mechanism padded with zeros, and no as-server bit (but a
//     router may have it, with CURVE). We always answer as 3.1.
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
//   - With CURVE each frame after the handshake is a MESSAGE, in a frame of its own
//     without MORE and COMMAND, as libzmq sends it. Its length says whether the
//     frame in it is within the limits, before it is read. A frame after the third
//     has to be opened to be ignored, and may have 4 KiB. A MESSAGE that was
//     repeated, left out, moved or changed cuts the link without a word.
//   - A message under way has MessageTime to arrive. A peer that takes nothing
//     for WriteStall is cut, at the latest a quarter of that time later. A deadline that passed while the process was
//     stopped does not count against bytes that had arrived by then.
//   - A TCP peer that is gone without a word is noticed by the kernel within
//     30 s (TCP_USER_TIMEOUT and keepalive).
//
// Everything refused is counted by its reason in muster_bus_refused_total, and
// logged: one line a minute of what one host does, ten at once and one a second in
// all, with the number of those left out.
package bus
