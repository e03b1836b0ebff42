package agentd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC061UnknownTags(t *testing.T) {
	n := bustest.NewNet()
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"})
	c := serveRaw(t, n)
	body := encoded(t, ping("x"))
	for _, tag := range []string{
		"", "\x00", "nonsense", "muster.v1.command", "MUSTER.V1.COMMAND", "muster.v1.Command ", " muster.v1.Command", "muster.v1.Command\x00",
		strings.Repeat("x", 10<<10), "\xff\xfe", "muster.v1.Agent", "google.protobuf.Duration",
		// What only an agent says.
		"muster.v1.Register", "muster.v1.Heartbeat", "muster.v1.Target", "muster.v1.OutputChunk", "muster.v1.Busy",
	} {
		c.send(t, []byte(tag), nil, body)
		k := &musterv1.Nack{}
		c.want(t, k)
		if k.Reason != musterv1.Nack_UNKNOWN_TYPE || len(k.Type) > 128 || !utf8.ValidString(k.Type) {
			t.Errorf("%.20q: got %v", tag, k)
		}
	}
	c.alive(t, "after")
	if a.ledger.holds("x") {
		t.Error("a command under another tag was taken")
	}
}

func TestC062UnknownFields(t *testing.T) {
	n := bustest.NewNet()
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}})
	c := serveRaw(t, n)
	more := strangers(1 << 20)
	for _, m := range down() {
		c.send(t, []byte(fullName(m)), nil, append(encoded(t, m), more...))
		c.send(t, []byte(fullName(m)), nil, append(bytes.Clone(more), encoded(t, m)...))
	}
	if end := c.end(t, "whole"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
	// They are not kept either.
	if size := a.journal.position().Seq; size == 0 {
		t.Error("nothing is in the journal")
	}
	until(t, "the command", func() bool { return a.ledger.holds("whole") })

	// Fields in reverse order, an enum value of the future, a duration with more in it.
	b := protowire.AppendTag(nil, 11, protowire.VarintType)
	b = protowire.AppendVarint(b, 99) // when_offline
	b = protowire.AppendTag(b, 6, protowire.BytesType)
	b = protowire.AppendBytes(b, append(encoded(t, durationpb.New(time.Minute)), strangers(300)...))
	for _, f := range []struct {
		field protowire.Number
		value string
	}{{4, `{"argv":["true"]}`}, {3, "name"}, {2, "exec"}, {1, "reverse"}} {
		b = protowire.AppendTag(b, f.field, protowire.BytesType)
		b = protowire.AppendBytes(b, []byte(f.value))
	}
	c.send(t, []byte("muster.v1.Command"), nil, b)
	if end := c.end(t, "reverse"); end.State != musterv1.Target_SUCCEEDED {
		t.Errorf("got %v", end)
	}
	c.conn.Close()
	c = serveRaw(t, n)
	c.alive(t, "after")
}

func TestC063DamagedBodies(t *testing.T) {
	n := bustest.NewNet()
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"})
	c := serveRaw(t, n)
	number := 0
	for _, m := range down() {
		typ, whole := []byte(fullName(m)), encoded(t, m)
		var bodies [][]byte
		for i := range whole {
			bodies = append(bodies, whole[:i])
			longest := bytes.Clone(whole)
			longest[i] = 0xff
			bodies = append(bodies, longest)
		}
		for bit := range min(8*len(whole), 8*64) {
			flipped := bytes.Clone(whole)
			flipped[bit/8] ^= 1 << (bit % 8)
			bodies = append(bodies, flipped)
		}
		bodies = append(bodies, append(bytes.Clone(whole), whole...)) // each field twice
		for _, wire := range []protowire.Type{protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType, protowire.StartGroupType, protowire.EndGroupType, 6, 7} {
			bodies = append(bodies, append(protowire.AppendTag(nil, 1, wire), 1, 0, 0, 0, 0, 0, 0, 0))
		}
		for _, b := range bodies {
			if endsTheLink(typ, b) {
				continue
			}
			c.send(t, typ, nil, b)
		}
		number++
		c.alive(t, fmt.Sprint("after", number))
	}
	// What parses and lacks its content is refused.
	for _, m := range []proto.Message{&musterv1.Command{Type: "ping"}, &musterv1.Cancel{}} {
		c.tell(t, m)
		k := &musterv1.Nack{}
		c.next(t, k, func() bool { return k.Type == fullName(m) && k.Reason == musterv1.Nack_INVALID })
	}
	// A message is three frames.
	c.send(t, []byte("muster.v1.Command"))
	c.send(t, []byte("muster.v1.Command"), []byte{0xff}, nil)
	c.send(t, []byte("muster.v1.Command"), nil, nil, nil)
	for range 3 {
		k := &musterv1.Nack{}
		c.next(t, k, func() bool { return k.Reason == musterv1.Nack_MALFORMED })
	}
	c.alive(t, "last")
}

// endsTheLink reports whether a damaged message is a whole one that ends a link.
func endsTheLink(typ, body []byte) bool {
	k := &musterv1.Nack{}
	return string(typ) == fullName(k) && proto.Unmarshal(body, k) == nil && k.Reason == musterv1.Nack_REFUSED
}

func TestC064NotUTF8(t *testing.T) {
	n := bustest.NewNet()
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}})
	c := serveRaw(t, n)
	for _, m := range down() {
		b := encoded(t, m)
		i := slices.IndexFunc(b, func(x byte) bool { return x >= 'a' && x <= 'z' })
		if i < 0 {
			continue
		}
		b[i] = 0xff // within a string
		c.send(t, []byte(fullName(m)), nil, b)
		if k := (&musterv1.Nack{}); fullName(m) != fullName(k) { // which is never answered by another one
			c.next(t, k, func() bool { return k.Type == fullName(m) && k.Reason == musterv1.Nack_MALFORMED })
		}
	}
	c.alive(t, "after")

	// A program's output is bytes and comes as it is; its reason is text.
	bad := "\xff\xfe\x00\xc3\x28\xe2\x82\xed\xa0\x80"
	octal := `\377\376\000\303\050\342\202\355\240\200`
	c.tell(t, shell("x", `printf '`+octal+`'; head -c 1048565 /dev/zero; printf '\351'; printf '`+octal+`\351' >&2; exit 1`))
	var stdout, stderr []byte
	for done := false; !done; {
		select {
		case m := <-c.in:
			switch m.typ {
			case "muster.v1.OutputChunk":
				chunk := &musterv1.OutputChunk{}
				if err := proto.Unmarshal(m.body, chunk); err != nil {
					t.Fatal(err)
				}
				if chunk.Stream == musterv1.Stream_STDOUT {
					stdout = append(stdout, chunk.Data...)
				} else {
					stderr = append(stderr, chunk.Data...)
				}
			case targetType:
				end := &musterv1.Target{}
				if err := proto.Unmarshal(m.body, end); err != nil {
					t.Fatal(err)
				}
				if done = end.State >= musterv1.Target_SUCCEEDED; done && (!utf8.ValidString(end.Reason) || !strings.Contains(end.Reason, "?") || end.State != musterv1.Target_FAILED) {
					t.Errorf("got %v", end)
				}
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the end does not come")
		}
	}
	if len(stdout) != 1<<20 || !bytes.HasPrefix(stdout, []byte(bad)) || stdout[len(stdout)-1] != 0xe9 || string(stderr) != bad+"\xe9" {
		t.Errorf("%d bytes, %.20q; stderr %q", len(stdout), stdout, stderr)
	}
}

func TestC065Amplification(t *testing.T) {
	n := bustest.NewNet()
	a := runAgent(t, n, Config{Dir: t.TempDir(), ID: "a"})
	c := serveRaw(t, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	acks := bytes.Repeat([]byte{1<<3 | 2, 0}, 1<<19)
	c.send(t, []byte("muster.v1.TargetAck"), nil, acks)
	c.send(t, []byte("muster.v1.Registered"), nil, bytes.Repeat([]byte{5<<3 | 2, 0}, 1<<19))
	m := ping("labels")
	m.Labels = map[string]string{}
	for i := range 60_000 {
		m.Labels[fmt.Sprint(i)] = "x"
	}
	c.tell(t, m)
	if end := c.end(t, "labels"); end.State != musterv1.Target_REJECTED || !strings.Contains(end.Reason, "at most") {
		t.Errorf("got %v", end)
	}
	m = nil
	c.alive(t, "after")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grew := int64(after.HeapAlloc) - int64(before.HeapAlloc); grew > 8<<20 {
		t.Errorf("%d MiB are kept", grew>>20)
	}
	if n := len(a.ledger.held); n > 2 {
		t.Errorf("%d commands are held", n)
	}
}

func TestC066ExtremeNumbers(t *testing.T) {
	n := bustest.NewNet()
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}})
	c := serveRaw(t, n)
	most := &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	least := &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}
	for i, s := range []struct {
		timeout, expires *durationpb.Duration
		want             musterv1.Target_State
	}{
		{nil, nil, musterv1.Target_SUCCEEDED},
		{most, most, musterv1.Target_SUCCEEDED},
		{&durationpb.Duration{}, durationpb.New(time.Hour), musterv1.Target_SUCCEEDED}, // none: the default
		{durationpb.New(-1), durationpb.New(time.Hour), musterv1.Target_SUCCEEDED},
		{least, durationpb.New(time.Hour), musterv1.Target_SUCCEEDED},
		{durationpb.New(1), durationpb.New(time.Hour), musterv1.Target_TIMED_OUT},
		{most, &durationpb.Duration{}, musterv1.Target_EXPIRED}, // no time left
		{most, durationpb.New(-1), musterv1.Target_EXPIRED},
		{most, least, musterv1.Target_EXPIRED},
		{most, durationpb.New(1), musterv1.Target_EXPIRED},
		{most, &durationpb.Duration{Nanos: math.MaxInt32}, musterv1.Target_SUCCEEDED}, // 2.1 s
	} {
		m := shell(fmt.Sprint("n", i), "sleep 0.05")
		m.Timeout, m.ExpiresIn = s.timeout, s.expires
		m.ExpireTime = nil
		c.tell(t, m)
		if end := c.end(t, m.Id); end.State != s.want {
			t.Errorf("timeout %v, expires in %v: got %v, want %v", s.timeout, s.expires, end, s.want)
		}
	}
	// Intervals of nothing do not make it busy, and sequences that go back mean nothing.
	for _, d := range []*durationpb.Duration{{}, least, most, {Seconds: 1 << 31}, durationpb.New(-1)} {
		c.tell(t, &musterv1.Registered{SessionId: "s", Capabilities: remembers, HeartbeatInterval: d, ReconnectWindow: d})
		c.tell(t, &musterv1.HeartbeatAck{SequenceNum: math.MaxUint64, Flags: math.MaxUint32 &^ 1})
		c.tell(t, &musterv1.HeartbeatAck{SequenceNum: 0})
	}
	c.alive(t, "after")
	beats := 0
	for more := true; more; {
		select {
		case m := <-c.in:
			if m.typ == "muster.v1.Heartbeat" {
				beats++
			}
		default:
			more = false
		}
	}
	if beats > 2 {
		t.Errorf("%d heartbeats at once", beats)
	}
}

// A number beyond 2^53 and an exit code beyond a byte arrive as they are.
func TestC066NumbersInResults(t *testing.T) {
	n := bustest.NewNet()
	dir := t.TempDir()
	writeProgram(t, dir+"/big", "#!/bin/sh\necho '{\"result\":9007199254740993}'\n")
	c := serve(t, n)
	runAgent(t, n, Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec"}, PluginDir: dir})
	c.send(t, &musterv1.Command{Id: "big", Type: "big"}, shell("exit", "exit 255"))
	if end := c.end(t, "big"); string(end.Result) != "9007199254740993" || !json.Valid(end.Result) {
		t.Errorf("got %v", end)
	}
	if end := c.end(t, "exit"); end.GetExitCode() != 255 {
		t.Errorf("got %v", end)
	}
}
