package load

import (
	"bytes"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus/curve"
)

var sample = Message{[]byte("muster.v1.OutputChunk"), nil, bytes.Repeat([]byte("x"), 100)}

func TestWireIsThreeFrames(t *testing.T) {
	want := "\x01\x15muster.v1.OutputChunk" + "\x01\x00" + "\x00\x64" + strings.Repeat("x", 100)
	if got := string(sample.Append(nil)); got != want {
		t.Errorf("wire is %q, want %q", got, want)
	}
	long := Message{make([]byte, 256)}.Append(nil)
	if want := "\x02\x00\x00\x00\x00\x00\x00\x01\x00"; string(long[:9]) != want {
		t.Errorf("header of a long frame is %q, want %q", long[:9], want)
	}
}

// listen feeds l two pieces of a stream as a peer would: what was not used comes
// again.
func listen(t *testing.T, l *listener, first, second []byte) (answers int) {
	t.Helper()
	answers, used, err := l.hear(first)
	if err != nil {
		t.Fatal(err)
	}
	more, _, err := l.hear(append(bytes.Clone(first[used:]), second...))
	if err != nil {
		t.Fatal(err)
	}
	return answers + more
}

func TestAnswersAreHeardWhereverTheyAreCut(t *testing.T) {
	ping := "\x04\x09\x04PING\x00\x00ab"
	stream := append(sample.Append(nil), ping...)
	stream = append(stream, sample.Append(nil)...)
	stream = append(stream, "\x01\x15muster.v1.OutputChunk"+ping+"\x01\x00"+ping+"\x00\x64"+strings.Repeat("x", 100)...)
	for cut := range stream {
		if got := listen(t, &listener{want: sample}, bytes.Clone(stream[:cut]), bytes.Clone(stream[cut:])); got != 3 {
			t.Fatalf("cut at %d: %d answers, want 3", cut, got)
		}
	}
}

func TestLongAnswerIsHeard(t *testing.T) {
	m := Message{make([]byte, 70_000), make([]byte, 255), make([]byte, 256)}
	answers, used, err := (&listener{want: m}).hear(m.Append(nil))
	if err != nil || answers != 1 || used != len(m.Append(nil)) {
		t.Errorf("%d answers in %d bytes, %v; want 1 in %d", answers, used, err, len(m.Append(nil)))
	}
}

func TestWrongAnswerIsAnError(t *testing.T) {
	for name, m := range map[string]Message{
		"other body":     {sample[0], nil, make([]byte, 100)},
		"a frame less":   {sample[0], sample[2]},
		"a frame more":   {sample[0], nil, sample[2], nil},
		"one frame":      {sample[0]},
		"frames swapped": {nil, sample[0], sample[2]},
	} {
		if _, _, err := (&listener{want: sample}).hear(m.Append(nil)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSealedAnswersAreHeard(t *testing.T) {
	ours, theirs := sessions(t)
	var stream []byte
	for range 3 {
		var err error
		if stream, err = sample.seal(stream, theirs); err != nil {
			t.Fatal(err)
		}
	}
	l := &listener{want: sample, session: ours}
	if got := listen(t, l, bytes.Clone(stream[:200]), bytes.Clone(stream[200:])); got != 3 {
		t.Errorf("%d answers, want 3", got)
	}
	if _, _, err := l.hear(stream); err == nil {
		t.Error("no error for what was played again")
	}
}

// sessions are the two ends of a CURVE connection.
func sessions(t *testing.T) (client, server *curve.Session) {
	t.Helper()
	public, secret, err := curve.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	s := &serverEnd{handshake: curve.NewServer(secret).Handshake()}
	_, own, err := curve.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	client, err = Security{Client: curve.NewClient(own, public)}.ShakeHands(s, "peer")
	if err != nil {
		t.Fatal(err)
	}
	return client, s.session
}

// serverEnd is a CURVE server that answers each write at once.
type serverEnd struct {
	bytes.Buffer
	handshake *curve.ServerHandshake
	session   *curve.Session
	commands  int
}

func (s *serverEnd) Write(b []byte) (int, error) {
	if len(b) == greetingSize {
		return s.Buffer.Write(b)
	}
	_, command, size := nextFrame(b)
	if size != len(b) {
		panic("a handshake command was not written whole")
	}
	answer, err := s.answer(command)
	if err != nil {
		return 0, err
	}
	s.Buffer.Write(AppendFrame(nil, FlagCommand, answer))
	return len(b), nil
}

func (s *serverEnd) answer(command []byte) (answer []byte, err error) {
	if s.commands++; s.commands == 1 {
		return s.handshake.Hello(command)
	}
	if _, _, err := s.handshake.Initiate(command); err != nil {
		return nil, err
	}
	answer, s.session, err = s.handshake.Ready(curve.Metadata{"Socket-Type": "ROUTER"})
	return answer, err
}
