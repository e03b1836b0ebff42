// Package curve is CurveZMQ (RFC 26) without any I/O: commands go in, commands
// come out, and the caller carries them. It speaks with every libzmq that has
// CURVE.
//
// There are four types to know. A Server and a Client hold the long-term keys;
// each connection begins with their Handshake. A handshake that succeeds ends in
// a Session, which seals what leaves the connection and opens what arrives.
//
//	client                          server
//	Hello()            → HELLO    → Hello(hello)
//	Welcome(welcome)   ← WELCOME  ←
//	Initiate(metadata) → INITIATE → Initiate(initiate): who is it? may it come in?
//	Ready(ready)       ← READY    ← Ready(metadata)
//	Session            ↔ MESSAGE  ↔ Session
//
// A command here is what RFC 26 counts the bytes of: the length of its name, the
// name, and the rest. HELLO to READY travel in ZMTP command frames. MESSAGE
// travels in a plain frame with neither MORE nor COMMAND set, whatever RFC 25
// says: libzmq sends it so and understands nothing else. The frame's own flags
// are inside, sealed.
//
// What the package promises:
//
//   - A peer's bytes never make it panic, and are checked by name and size before
//     any of them is used. What it refuses it refuses with a *Refusal; the caller
//     then closes the connection and sends nothing. A handshake or session that
//     refused once refuses for ever.
//   - Until INITIATE the server keeps 24 bytes of a client. The rest lies in the
//     cookie, sealed with a key that is wiped 60 seconds after it was made, used
//     or not.
//   - INITIATE is taken only with the cookie that this connection was given, so a
//     recorded connection cannot be played again, not even within that minute.
//   - Short nonces go up by exactly one. A message that is repeated, left out,
//     reordered or changed breaks the session.
//   - A key has one spelling. All-zero, low-order and non-canonical public keys are
//     refused wherever they come from, so a PublicKey may serve as an identity.
//   - A SecretKey prints as a mask, whatever the verb.
package curve
