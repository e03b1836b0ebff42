package curve

import (
	"bytes"
	"fmt"
)

// The sizes of RFC 26, names included. HELLO is longer than WELCOME, so that
// nobody can use a server to send much to somebody else by sending it little.
const (
	helloSize    = 200
	welcomeSize  = 168
	initiateSize = 257 // or more, with metadata
	readySize    = 30  // or more, with metadata
	errorSize    = 7   // or more, with a reason

	// commandLimit bounds INITIATE, READY and ERROR.
	commandLimit = 4 << 10
)

// The names of the commands, as they are on the wire.
const (
	hello    = "\x05HELLO"
	welcome  = "\x07WELCOME"
	initiate = "\x08INITIATE"
	ready    = "\x05READY"
	message  = "\x07MESSAGE"
	failure  = "\x05ERROR"
)

// Reason is one of a fixed set of words, fit for the label of a metric.
type Reason string

// Why a command is refused.
const (
	BadName     Reason = "name"     // another command was due
	BadSize     Reason = "size"     // too short, too long
	BadVersion  Reason = "version"  // not CurveZMQ 1.0
	BadPadding  Reason = "padding"  // HELLO's filler isn't zero
	BadKey      Reason = "key"      // a public key that no peer can have
	BadNonce    Reason = "nonce"    // repeated, skipped or out of order
	BadBox      Reason = "box"      // changed on the way, or sealed for another key
	BadCookie   Reason = "cookie"   // expired, or of another connection
	BadVouch    Reason = "vouch"    // the client does not have the key that it claims
	BadMetadata Reason = "metadata" // cut short, named twice
	BadFlags    Reason = "flags"    // reserved bits
	BadOrder    Reason = "order"    // not due now, or something was refused before
)

// Refusal says what a peer did wrong. The connection is of no more use: close it
// and send nothing.
type Refusal struct {
	Command string // the command that was due: HELLO, WELCOME, INITIATE, READY or MESSAGE
	Reason  Reason
	Detail  string
}

func (r *Refusal) Error() string { return "curve: " + r.Command + ": " + r.Detail }

func refuse(name string, reason Reason, format string, args ...any) *Refusal {
	return &Refusal{name[1:], reason, fmt.Sprintf(format, args...)}
}

// Rejection is the server's ERROR command, as the client gets it: the server
// doesn't want this client. No key seals it, so anybody on the way can send it.
type Rejection struct {
	Reason string // in the server's words; libzmq sends three digits
}

func (r *Rejection) Error() string { return fmt.Sprintf("curve: the server refused us: %q", r.Reason) }

// Reject gives the server's ERROR command with a reason of at most 255 bytes. A
// client that gets one should not come again with its key: to let it, close
// without a word.
func Reject(reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	command := make([]byte, 0, errorSize+len(reason))
	command = append(command, failure...)
	command = append(command, byte(len(reason)))
	return append(command, reason...)
}

// Split cuts a command into its name and the rest, for carriers that want them
// apart. The name is empty if the command is too short for it.
func Split(command []byte) (name string, rest []byte) {
	if len(command) == 0 || len(command)-1 < int(command[0]) {
		return "", command
	}
	end := 1 + int(command[0])
	return string(command[1:end]), command[end:]
}

// stage is how far a handshake has come.
type stage uint8

const (
	atHello stage = iota
	atWelcome
	atInitiate
	atReady
	over // or broken
)

// leave ends the stage that a method is made for. Whoever returns before it sets
// the next one has broken the handshake.
func (s *stage) leave(due stage, name string) error {
	at := *s
	*s = over
	if at != due {
		return refuse(name, BadOrder, "not due now, or the handshake is broken")
	}
	return nil
}

// Join is the reverse of Split. The name has at most 255 bytes.
func Join(name string, rest []byte) []byte {
	command := make([]byte, 0, 1+len(name)+len(rest))
	command = append(command, byte(len(name)))
	command = append(command, name...)
	return append(command, rest...)
}

// expect checks a command's name and size.
func expect(command []byte, name string, least, most int) error {
	if !bytes.HasPrefix(command, []byte(name)) {
		got, _ := Split(command)
		return refuse(name, BadName, "a command named %.16q came instead", got)
	}
	switch size := len(command); {
	case size != least && least == most:
		return refuse(name, BadSize, "%d bytes, not %d", size, least)
	case size < least:
		return refuse(name, BadSize, "%d bytes, not %d or more", size, least)
	case size > most:
		return refuse(name, BadSize, "%d bytes, not %d or fewer", size, most)
	}
	return nil
}

// rejection reads an ERROR command; nil if it is none.
func rejection(command []byte) error {
	if len(command) < errorSize || len(command) > commandLimit || !bytes.HasPrefix(command, []byte(failure)) {
		return nil
	}
	if reason := command[errorSize:]; len(reason) == int(command[errorSize-1]) {
		return &Rejection{string(reason)}
	}
	return nil
}
