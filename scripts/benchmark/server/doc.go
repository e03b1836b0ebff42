// Package server runs the servers that are compared, each in a process of its
// own: each sends every message back to the peer it came from.
//
// A server writes one line, "ready ADDR [KEY]", when it listens; KEY is its CURVE
// key. Then it takes orders on its standard input, a line each, and answers each
// with "done" or with what went wrong. It ends with its input.
//
//   - settle: give memory back to the system that is not in use.
//   - profile FILE, and profile-end: write a CPU profile (ours only).
//   - await-full: answer when a peer's queue is full (ours only).
//
// libzmq/router.c is libzmq's server. The others are in this package.
package server
