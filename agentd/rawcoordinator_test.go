package agentd

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rawCoordinator speaks ZMTP by hand, so that it can say what no bus would.
type rawCoordinator struct {
	conn net.Conn
	in   chan rawMessage // what the agent says, closed with the link
}

type rawMessage struct {
	typ  string
	body []byte
}

// serveRaw takes the agent's link and registers it.
func serveRaw(t *testing.T, n *bustest.Net) *rawCoordinator {
	t.Helper()
	conn, err := n.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &rawCoordinator{conn: conn, in: make(chan rawMessage, 10_000)}
	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL")
	c.write(t, greeting)
	r := bufio.NewReader(conn)
	if _, err := io.ReadFull(r, greeting); err != nil {
		t.Fatal(err)
	}
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
	c.write(t, append([]byte{4, byte(len(ready))}, ready...))
	if _, _, err := readFrame(r); err != nil {
		t.Fatal(err)
	}
	go c.read(r)
	c.want(t, &musterv1.Register{})
	c.tell(t, &musterv1.Registered{SessionId: "s", Capabilities: remembers, HeartbeatInterval: durationpb.New(time.Minute)})
	return c
}

func (c *rawCoordinator) read(r io.Reader) {
	defer close(c.in)
	for {
		var frames [][]byte
		for more := true; more; {
			flags, b, err := readFrame(r)
			if err != nil {
				return
			}
			frames, more = append(frames, b), flags&1 != 0
		}
		if len(frames) == 3 {
			c.in <- rawMessage{string(frames[0]), frames[2]}
		}
	}
}

func readFrame(r io.Reader) (flags byte, b []byte, err error) {
	h := make([]byte, 9)
	if _, err = io.ReadFull(r, h[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(h[1])
	if h[0]&2 != 0 {
		if _, err = io.ReadFull(r, h[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(h[1:])
	}
	b = make([]byte, size)
	_, err = io.ReadFull(r, b)
	return h[0], b, err
}

func (c *rawCoordinator) write(t *testing.T, b []byte) {
	t.Helper()
	_ = c.conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.conn.Write(b); err != nil {
		t.Fatalf("the link is gone: %v", err)
	}
}

// send sends frames as they are.
func (c *rawCoordinator) send(t *testing.T, frames ...[]byte) {
	t.Helper()
	var wire []byte
	for i, f := range frames {
		flags := byte(3)
		if i == len(frames)-1 {
			flags = 2
		}
		wire = append(binary.BigEndian.AppendUint64(append(wire, flags), uint64(len(f))), f...)
	}
	c.write(t, wire)
}

func (c *rawCoordinator) tell(t *testing.T, m proto.Message) {
	t.Helper()
	c.send(t, []byte(fullName(m)), nil, encoded(t, m))
}

// next reads on to the next message of m's type that is as wanted.
func (c *rawCoordinator) next(t *testing.T, m proto.Message, is func() bool) {
	t.Helper()
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	for {
		select {
		case got, ok := <-c.in:
			if !ok {
				t.Fatalf("the link ended before a %s", fullName(m))
			}
			if got.typ != fullName(m) {
				continue
			}
			proto.Reset(m)
			if err := proto.Unmarshal(got.body, m); err != nil {
				t.Fatal(err)
			}
			if is() {
				return
			}
		case <-late.C:
			t.Fatalf("waited in vain for a %s", fullName(m))
		}
	}
}

func (c *rawCoordinator) want(t *testing.T, m proto.Message) {
	t.Helper()
	c.next(t, m, func() bool { return true })
}

// end waits for the final Target of a command.
func (c *rawCoordinator) end(t *testing.T, id string) *musterv1.Target {
	t.Helper()
	m := &musterv1.Target{}
	c.next(t, m, func() bool { return m.CommandId == id && m.State >= musterv1.Target_SUCCEEDED })
	return m
}

// alive shows that the link works and the agent does what it is told.
func (c *rawCoordinator) alive(t *testing.T, id string) {
	t.Helper()
	c.tell(t, ping(id))
	if end := c.end(t, id); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
}

func fullName(m proto.Message) string { return string(m.ProtoReflect().Descriptor().FullName()) }

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// strangers are fields that nobody knows, of all wire types.
func strangers(size int) (b []byte) {
	for _, field := range []uint64{1000, 19000, 536870911} {
		b = append(binary.AppendUvarint(b, field<<3), 0xff, 0x01)
		b = append(binary.AppendUvarint(b, field<<3|1), 1, 2, 3, 4, 5, 6, 7, 8)
		b = append(binary.AppendUvarint(b, field<<3|5), 1, 2, 3, 4)
		b = binary.AppendUvarint(b, field<<3|3)
		b = binary.AppendUvarint(append(b, 8, 1), field<<3|4) // a group
		b = binary.AppendUvarint(binary.AppendUvarint(b, field<<3|2), uint64(size/3))
		b = append(b, make([]byte, size/3)...)
	}
	return b
}

// down are the messages that a coordinator sends.
func down() []proto.Message {
	return []proto.Message{
		&musterv1.Registered{SessionId: "s", HeartbeatInterval: durationpb.New(time.Minute), ReconnectWindow: durationpb.New(time.Second), SettledIds: []string{"none"}},
		&musterv1.HeartbeatAck{SequenceNum: 1, Flags: 2},
		&musterv1.Command{Id: "whole", Type: "ping", Name: "n", Input: []byte(`{}`), Labels: map[string]string{"a": "b"}, Timeout: durationpb.New(time.Minute), ExpiresIn: durationpb.New(time.Hour)},
		&musterv1.Cancel{CommandId: "whole"},
		&musterv1.TargetAck{CommandIds: []string{"none", "neither"}},
		&musterv1.Nack{Type: "muster.v1.Heartbeat", Reason: musterv1.Nack_UNKNOWN_TYPE, Detail: "d", Field: "f"},
		&musterv1.Goodbye{Reason: "r", RetryAfter: durationpb.New(time.Millisecond)},
	}
}
