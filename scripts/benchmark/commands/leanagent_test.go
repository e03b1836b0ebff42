package commands

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
	"github.com/musterhq/muster/scripts/benchmark/load"
)

// wireEnd is the coordinator's end of a link, byte by byte.
type wireEnd struct {
	t  *testing.T
	nc net.Conn
	in *bufio.Reader
}

// linkOf gives the other end of an agent that runs until the test ends.
func linkOf(t *testing.T) (*fleet, *wireEnd) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f := newFleet(ln.Addr().String(), 1)
	ended := make(chan error, 1)
	go func() { ended <- newLeanAgent(f, 0).run(t.Context()) }()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-ended
		if n := f.tally.now().Registered; n != 0 {
			t.Errorf("%d agents are registered without a link", n)
		}
	})
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	e := &wireEnd{t: t, nc: nc, in: bufio.NewReader(nc)}
	greeting := make([]byte, 64)
	if _, err := io.ReadFull(e.in, greeting); err != nil {
		t.Fatal(err)
	}
	e.write(greeting) // NULL, too
	if flags, ready := e.frame(); flags != load.FlagCommand || !bytes.Contains(ready, []byte(agentID(0))) {
		t.Fatalf("%q came instead of READY", ready)
	}
	e.write(load.AppendFrame(nil, load.FlagCommand, []byte("\x05READY")))
	return f, e
}

func (e *wireEnd) write(pieces ...[]byte) {
	e.t.Helper()
	if _, err := e.nc.Write(bytes.Join(pieces, nil)); err != nil {
		e.t.Fatal(err)
	}
}

func (e *wireEnd) frame() (flags byte, body []byte) {
	e.t.Helper()
	flags, body, err := load.ReadFrame(e.in)
	if err != nil {
		e.t.Fatal(err)
	}
	return flags, bytes.Clone(body)
}

// message is m as it goes over the wire.
func message(t *testing.T, m proto.Message) []byte {
	t.Helper()
	body, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return load.Message{[]byte(typeOf(m)), nil, body}.Append(nil)
}

// want reads the next message into m, which says its type.
func (e *wireEnd) want(m proto.Message) {
	e.t.Helper()
	_, name := e.frame()
	_, envelope := e.frame()
	flags, body := e.frame()
	if string(name) != typeOf(m) || len(envelope) != 0 || flags&load.FlagMore != 0 {
		e.t.Fatalf("%q came, want %s", name, typeOf(m))
	}
	if err := proto.Unmarshal(body, m); err != nil {
		e.t.Fatal(err)
	}
}

func (e *wireEnd) wantPong(context string) {
	e.t.Helper()
	if flags, body := e.frame(); flags != load.FlagCommand || string(body) != "\x04PONG"+context {
		e.t.Fatalf("%q came, want PONG with %q", body, context)
	}
}

func ping(context string) []byte {
	return load.AppendFrame(nil, load.FlagCommand, []byte("\x04PING\x00\x00"+context))
}

func TestLeanAgentRegistersAndBeats(t *testing.T) {
	f, e := linkOf(t)
	var first musterv1.Register
	e.want(&first)
	if first.AgentId != agentID(0) || first.RunId != f.runID || first.SequenceNum != 1 || first.Journal.GetEpoch() != f.runID {
		t.Errorf("it registers with %v", &first)
	}
	e.write(ping("abc"), message(t, &musterv1.Registered{HeartbeatInterval: durationpb.New(20 * time.Millisecond)}))
	e.wantPong("abc")

	for want := uint64(2); want < 5; want++ {
		var beat musterv1.Heartbeat
		if e.want(&beat); beat.SequenceNum != want {
			t.Errorf("a beat has number %d, want %d", beat.SequenceNum, want)
		}
	}
}

func TestLeanAgentAnswersEachCommand(t *testing.T) {
	f, e := linkOf(t)
	e.want(&musterv1.Register{})
	e.write(message(t, &musterv1.Registered{HeartbeatInterval: durationpb.New(1000 * time.Hour)}))

	// Whatever comes between the frames, and whatever else a Command holds.
	command := &musterv1.Command{Id: "C1", Type: "ping", Input: []byte(strings.Repeat("7", 3000)), Idempotent: true, ExpiresIn: durationpb.New(time.Hour)}
	stream := message(t, command)
	cut := 2 + len(typeOf(command))
	e.write(message(t, &musterv1.Goodbye{}), stream[:cut], ping("1"), stream[cut:cut+2], ping("2"), stream[cut+2:])
	e.wantPong("1")
	e.wantPong("2")
	for i, id := range []string{"C1", "C2"} {
		var got musterv1.Target
		e.want(&got)
		at := got.StartTime
		if time.Since(at.AsTime()).Abs() > time.Minute {
			t.Errorf("it began at %v", at.AsTime())
		}
		want := &musterv1.Target{CommandId: id, AgentId: agentID(0), State: musterv1.Target_SUCCEEDED, ExitCode: proto.Int32(0),
			StartTime: at, EndTime: at, Result: resultOf(resultSize), JournalSeq: uint32(2 * (i + 1))}
		if !proto.Equal(&got, want) {
			t.Errorf("target is %v, want %v", &got, want)
		}
		e.write(message(t, &musterv1.Command{Id: "C2", Type: "ping"}))
	}

	e.write(message(t, &musterv1.TargetAck{CommandIds: []string{"C1", "C2"}}), message(t, &musterv1.Nack{Type: "x"}),
		message(t, &musterv1.HeartbeatAck{Flags: uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE)}))
	e.want(&musterv1.Target{}) // of C2 once more
	var again musterv1.Register
	e.want(&again)
	if again.SequenceNum != 2 || again.Journal.GetSeq() != 6 {
		t.Errorf("asked for all it says %v", &again)
	}
	if n := f.tally.now(); n != (Tally{Registered: 1, Registrations: 1, Results: 3, Acks: 2, Beats: 1, Errors: 1}) {
		t.Errorf("the agent did %+v", n)
	}
}

func TestLeanAgentEndsWithItsLink(t *testing.T) {
	for name, said := range map[string][]byte{
		"a frame less":       load.Message{[]byte("x"), nil}.Append(nil),
		"a frame more":       load.Message{[]byte("x"), nil, nil, nil}.Append(nil),
		"Command without id": message(t, &musterv1.Command{Type: "ping"}),
		"half a field":       load.Message{[]byte(typeOf(&musterv1.Command{})), nil, []byte("\x0a\x7f")}.Append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			_, e := linkOf(t)
			e.want(&musterv1.Register{})
			e.write(said)
			if _, err := e.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the link goes on: %v", err)
			}
		})
	}
}

func TestSucceededIsATarget(t *testing.T) {
	at := time.Now()
	var got musterv1.Target
	if err := proto.Unmarshal(appendSucceeded(nil, []byte("C"), "A", []byte("null"), 1<<31, at), &got); err != nil {
		t.Fatal(err)
	}
	want := &musterv1.Target{CommandId: "C", AgentId: "A", State: musterv1.Target_SUCCEEDED, ExitCode: proto.Int32(0),
		StartTime: timestamppb.New(at), EndTime: timestamppb.New(at), Result: []byte("null"), JournalSeq: 1 << 31}
	if !proto.Equal(&got, want) {
		t.Errorf("target is %v, want %v", &got, want)
	}
}
