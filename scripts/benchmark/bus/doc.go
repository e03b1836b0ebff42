// Package bus measures round trips over the bus against other servers, and what
// one peer that stops reading does to the others.
//
// Every server runs in a process of its own and sends each message back. The
// load, in this process, is the same for all: 100-byte bodies in three frames.
// In each round every server is started anew and measured once, so that what
// else the machine does falls on all alike; then medians are taken.
package bus
