package simagent

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// wire is the bytes of some messages.
func wire(t *testing.T, ms ...proto.Message) (b []byte) {
	t.Helper()
	for _, m := range ms {
		var err error
		if b, err = appendMessage(b, m); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// inboxOf reads from r.
func inboxOf(t *testing.T, r io.Reader) *inbox {
	near, far := bustest.Pipe()
	t.Cleanup(func() { near.Close() })
	t.Cleanup(func() { far.Close() })
	return newInbox(readFrom{near, r})
}

// readFrom is a connection that reads from somewhere else.
type readFrom struct {
	net.Conn
	r io.Reader
}

func (c readFrom) Read(b []byte) (int, error) { return c.r.Read(b) }

// deaf is a connection whose other end may be gone: writes are lost.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

func TestMessagesArriveWhole(t *testing.T) {
	sent := []*musterv1.Command{{Id: "a"}, {Id: "b", Input: bytes.Repeat([]byte("x"), 100_000)}, {Id: "c"}, {Id: "d", Input: bytes.Repeat([]byte("y"), 255)}}
	var b []byte
	for _, m := range sent {
		b = append(b, flagCommand, 6, 4, 'P', 'I', 'N', 'G', 0) // between messages
		b = append(b, wire(t, m)...)
	}
	for name, r := range map[string]io.Reader{
		"at once":      bytes.NewReader(b),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(b)),
		"halves":       iotest.HalfReader(bytes.NewReader(b)),
		"with the end": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		t.Run(name, func(t *testing.T) {
			in := inboxOf(t, r)
			for _, want := range sent {
				got := &musterv1.Command{}
				m, err := in.message()
				if err != nil {
					t.Fatal(err)
				}
				if err := proto.Unmarshal(m.body, got); err != nil || string(m.name) != "muster.v1.Command" || !proto.Equal(got, want) {
					t.Fatalf("got %s %.40v, %v", m.name, got, err)
				}
			}
			if _, err := in.message(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
			if len(in.buf) > inboxKept {
				t.Errorf("an idle inbox keeps %d bytes", len(in.buf))
			}
		})
	}
}

func TestBadMessagesBreakTheLink(t *testing.T) {
	whole := string(wire(t, &musterv1.Command{Id: "a"}))
	for name, c := range map[string]struct{ bytes, want string }{
		"cut in a header":  {whole[:1], "unexpected EOF"},
		"cut in a frame":   {whole[:9], "unexpected EOF"},
		"cut after frames": {whole[:len(whole)-3], "unexpected EOF"},
		"one frame":        {"\x00\x01a", "1 frames"},
		"two frames":       {"\x01\x01a\x00\x01b", "2 frames"},
		"four frames":      {"\x01\x01a\x01\x01b\x01\x01c\x00\x01d", "more than 3 frames"},
		"2^62 bytes":       {"\x02\x40\x00\x00\x00\x00\x00\x00\x00", "more than 8388608 bytes"},
		"2^64-1 bytes":     {"\x02\xff\xff\xff\xff\xff\xff\xff\xff", "more than 8388608 bytes"},
		"9 MiB in frames":  {"\x03\x00\x00\x00\x00\x00\x50\x00\x00" + strings.Repeat("x", 5<<20) + "\x03\x00\x00\x00\x00\x00\x40\x00\x00", "more than 8388608 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inboxOf(t, strings.NewReader(c.bytes)).message()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestHandshakeRefusesOthers(t *testing.T) {
	hello := string(greeting())
	for name, c := range map[string]struct{ bytes, want string }{
		"HTTP":           {"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nbad", "not a ZMTP 3 peer"},
		"ZMTP 2":         {strings.Replace(hello, "\x7f\x03", "\x7f\x01", 1), "not a ZMTP 3 peer"},
		"CURVE":          {strings.Replace(hello, "NULL\x00", "CURVE", 1), `"CURVE", want NULL`},
		"cut":            {hello[:40], "unexpected EOF"},
		"nothing":        {"", "EOF"},
		"only greeting":  {hello, "EOF"},
		"ERROR":          {hello + "\x04\x0b\x05ERROR\x04busy", "busy"},
		"a message":      {hello + "\x00\x01a", "a message in the handshake"},
		"another":        {hello + "\x04\x06\x05HELLO", "want READY"},
		"a long command": {hello + "\x06\x7f\x00\x00\x00\x00\x00\x00\x00", "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := bustest.Pipe()
			defer near.Close()
			far.Write([]byte(c.bytes))
			far.Close()
			_, err := shakeHands(deaf{near}, "a")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// What is queued on a link that takes nothing is bounded.
func TestLinkThatTakesNothingIsGivenUp(t *testing.T) {
	near, far := bustest.Pipe()
	defer far.Close()
	l := &link{nc: near, in: newInbox(near)}
	chunk := &musterv1.OutputChunk{Data: make([]byte, chunkSize)}
	l.push(chunk)
	written := make(chan struct{})
	go func() { l.flush(); close(written) }()
	for range 2 * outboxBytes / chunkSize {
		l.push(chunk)
	}
	<-written
	if err := l.cause(io.EOF); !errors.Is(err, errBacklog) {
		t.Errorf("got %v", err)
	}
	l.push(chunk)
	l.flush()
	if l.out != nil {
		t.Error("a broken link takes messages")
	}
}
