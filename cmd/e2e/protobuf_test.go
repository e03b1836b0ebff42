package e2e

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// registered dials, does the handshake and registers.
func (f *fleet) registered(id string) rawPeer {
	f.t.Helper()
	p := f.dialled()
	if err := p.register(id); err != nil {
		f.t.Fatal(err)
	}
	p.want(f.t, "muster.v1.Registered")
	return p
}

func (f *fleet) dialled() rawPeer {
	f.t.Helper()
	p, err := dialRaw(f.endpoint, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { p.Close() })
	if err := p.handshake(); err != nil {
		f.t.Fatal(err)
	}
	return p
}

// want reads messages up to one of that type.
func (p rawPeer) want(t *testing.T, kind string) []byte {
	t.Helper()
	for {
		frames, err := p.receive()
		if err != nil {
			t.Fatalf("waiting for %s: %v", kind, err)
		}
		if len(frames) == 3 && string(frames[0]) == kind {
			return frames[2]
		}
	}
}

// wantUsable shows that the link is as good as before. seq is the next of its
// heartbeats.
func (p rawPeer) wantUsable(t *testing.T, seq uint64) {
	t.Helper()
	if err := p.send(&musterv1.Heartbeat{SequenceNum: seq}); err != nil {
		t.Fatal(err)
	}
	ack := &musterv1.HeartbeatAck{}
	if err := proto.Unmarshal(p.want(t, "muster.v1.HeartbeatAck"), ack); err != nil || ack.SequenceNum != seq {
		t.Fatalf("heartbeat %d is answered with %v %v", seq, ack, err)
	}
}

// Types that nobody knows, and those that only a coordinator may send, are
// answered and change nothing.
func TestC061UnknownTypes(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	p := f.registered("raw")
	body, err := proto.Marshal(&musterv1.Command{Id: "01M8NJGX3B1NSN9645PNR87CTR", Type: "ping"})
	if err != nil {
		t.Fatal(err)
	}
	for i, kind := range []string{
		"", "\x00", "nonsense", "MUSTER.V1.HEARTBEAT", "muster.v1.Heartbeat ", "muster.v1.", strings.Repeat("x", 10<<10), "\xff\xfe", "\x1b[2J\n",
		"muster.v1.Registered", "muster.v1.HeartbeatAck", "muster.v1.Command", "muster.v1.Cancel", "muster.v1.TargetAck",
		"muster.v1.Agent", "google.protobuf.Timestamp", "muster.v1.Envelope",
	} {
		if err := p.sendFrames([]byte(kind), nil, body); err != nil {
			t.Fatal(err)
		}
		nack, err := p.nack()
		if err != nil || nack.Reason != musterv1.Nack_UNKNOWN_TYPE || len(nack.Type) > 128 {
			t.Errorf("%.40q: %v %v", kind, nack, err)
		}
		p.wantUsable(t, uint64(i+2))
	}
	// A Nack is never answered.
	if err := p.send(&musterv1.Nack{Type: "muster.v1.Command", Reason: musterv1.Nack_UNKNOWN_TYPE}); err != nil {
		t.Fatal(err)
	}
	if err := p.send(&musterv1.Heartbeat{SequenceNum: 19}); err != nil {
		t.Fatal(err)
	}
	if frames, err := p.receive(); err != nil || string(frames[0]) != "muster.v1.HeartbeatAck" {
		t.Errorf("a Nack is answered with %q %v", frames, err)
	}
	if log := f.coordinator.logTail(); strings.Contains(log, "\x1b") || strings.Contains(log, strings.Repeat("x", 300)) {
		t.Errorf("the log has what peers wrote, as it is:\n%s", log)
	}
	f.wantCounted("muster_bus_refused_total")
}

// wantCounted wants some series of that name to be above zero.
func (f *fleet) wantCounted(name string) {
	f.t.Helper()
	if !f.counted(name) {
		f.t.Errorf("nothing is counted as %s", name)
	}
}

func (f *fleet) counted(name string) bool {
	f.t.Helper()
	for line := range strings.Lines(f.metrics()) {
		if strings.HasPrefix(line, name) && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			return true
		}
	}
	return false
}

// fromTheFuture is what a newer peer may add to any message.
func fromTheFuture(size int) (b []byte) {
	for _, field := range []protowire.Number{1000, 18999, 20000, 1<<29 - 1} {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), math.MaxUint64)
		b = protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), 7)
		b = protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), 7)
		b = protowire.AppendTag(protowire.AppendTag(b, field, protowire.StartGroupType), field, protowire.EndGroupType)
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), make([]byte, size/4))
	}
	return b
}

// reversed has the fields of a message in the reverse order.
func reversed(t *testing.T, b []byte) (out []byte) {
	t.Helper()
	var fields [][]byte
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		fields, b = append(fields, b[:n]), b[n:]
	}
	slices.Reverse(fields)
	return slices.Concat(fields...)
}

// What a newer agent adds to its messages is passed over; a value of an enum
// that is not known does not become a known one.
func TestC062NewerPeers(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	p := f.dialled()
	sendPlus := func(m proto.Message, extra []byte) {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.sendFrames([]byte(m.ProtoReflect().Descriptor().FullName()), nil, append(extra, reversed(t, body)...)); err != nil {
			t.Fatal(err)
		}
	}
	sendPlus(registerOf("raw"), fromTheFuture(32<<10))
	p.want(t, "muster.v1.Registered")
	f.waitOnline("raw")
	sendPlus(&musterv1.Heartbeat{SequenceNum: 2}, fromTheFuture(1<<20))
	ack := &musterv1.HeartbeatAck{}
	if err := proto.Unmarshal(p.want(t, "muster.v1.HeartbeatAck"), ack); err != nil || ack.SequenceNum != 2 || ack.Flags != 0 {
		t.Errorf("a heartbeat from the future: %v %v", ack, err)
	}

	id := f.submit(`{"type":"ping","target":{"agents":["raw"]}}`)
	p.want(t, "muster.v1.Command")
	sendPlus(&musterv1.Target{CommandId: id, AgentId: "raw", State: 99}, nil)
	if nack, err := p.nack(); err != nil || nack.Reason != musterv1.Nack_INVALID || nack.Field != "state" {
		t.Errorf("an unknown state: %v %v", nack, err)
	}
	if got := f.targets(id)["raw"]; got.State != "SENT" {
		t.Errorf("after an unknown state: %+v", got)
	}
	sendPlus(&musterv1.Target{CommandId: id, AgentId: "raw", State: musterv1.Target_SUCCEEDED, Result: []byte(`{}`)}, fromTheFuture(64<<10))
	p.want(t, "muster.v1.TargetAck")
	if got := f.waitDone(id, 5*time.Second)["raw"]; got.State != "SUCCEEDED" {
		t.Errorf("got %+v", got)
	}
}

func registerOf(id string) *musterv1.Register {
	return &musterv1.Register{
		AgentId: id, RunId: nonce(), SequenceNum: 1, Capabilities: uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS),
		Journal: &musterv1.JournalPosition{Epoch: nonce(), Seq: 1}, CommandTypes: []string{"exec", "ping"},
		Tags: map[string]string{"env": "test"}, Attributes: &musterv1.Attributes{Hostname: "host", Os: "linux"},
	}
}

// Every prefix of every message that an agent may send, and every flip of a bit
// in its first bytes: whatever it makes of them, the coordinator lives, serves
// others, and has no agent that nobody is.
func TestC063DamagedBodies(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("good")
	f.waitOnline("good")
	id := f.submit(`{"type":"exec","input":{"argv":["sleep","300"]},"target":{"agents":["good"]}}`)
	p := f.registered("raw")
	for _, m := range []proto.Message{
		&musterv1.Heartbeat{SequenceNum: 300},
		&musterv1.Target{CommandId: id, AgentId: "raw", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Size: 3, Kept: 3}, EndTime: timestamppb.Now()},
		&musterv1.OutputChunk{CommandId: id, Stream: musterv1.Stream_STDOUT, Data: []byte("abc")},
		&musterv1.Busy{CommandId: id},
		&musterv1.Nack{Type: "muster.v1.Command", Reason: musterv1.Nack_INVALID},
		registerOf("raw"),
	} {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range damaged(body) {
			if p.sendFrames([]byte(m.ProtoReflect().Descriptor().FullName()), nil, bad) != nil {
				p = f.registered("raw") // a link may be closed over it, as for an id that is not its own
			}
		}
		p.Close()
		p = f.registered("raw")
		p.wantUsable(t, 2)
	}
	for agent := range f.statuses() {
		if agent != "good" && (len(agent) > 3 || agent == "") {
			t.Errorf("there is an agent %q", agent)
		}
	}
	if got := f.targets(id)["good"]; got.final() {
		t.Errorf("the command of another agent: %+v", got)
	}
	f.wantEcho("good")
}

func damaged(body []byte) (all [][]byte) {
	for i := range body {
		all = append(all, body[:i])
	}
	for i := range min(len(body), 64) {
		for bit := range 8 {
			b := slices.Clone(body)
			b[i] ^= 1 << bit
			all = append(all, b)
		}
		b := slices.Clone(body)
		b[i] = 0xff
		all = append(all, b)
	}
	twice := slices.Concat(body, body)
	wrongType := append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 5), body...)
	return append(all, twice, wrongType)
}

// Text that is no UTF-8 costs its message and nothing more; a program may
// write what it likes.
func TestC064BadUTF8(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("good")
	f.waitOnline("good")
	p := f.dialled()
	for _, field := range []protowire.Number{1, 2, 3, 11} { // agent_id, run_id, agent_type, command_types
		bad := protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), "caf\xe9")
		whole, err := proto.Marshal(registerOf("raw"))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.sendFrames([]byte("muster.v1.Register"), nil, append(whole, bad...)); err != nil {
			t.Fatal(err)
		}
		if nack, err := p.nack(); err != nil || nack.Reason != musterv1.Nack_MALFORMED && nack.Reason != musterv1.Nack_INVALID {
			t.Errorf("field %d: %v %v", field, nack, err)
		}
	}
	if status := f.statuses(); len(status) != 1 {
		t.Errorf("agents: %v", status)
	}
	if err := p.register("raw"); err != nil {
		t.Fatal(err)
	}
	p.want(t, "muster.v1.Registered")

	want := "\xff\xfe\x00\xc3\x28\xe2\x82\xed\xa0\x80 caf\xe9"
	id := f.submit(commandBody([]string{"good"}, `printf '\377\376\000\303\050\342\202\355\240\200 caf\351'; printf 'why\377' >&2; exit 3`))
	if got := f.waitDone(id, 10*time.Second)["good"]; got.State != "FAILED" {
		t.Errorf("got %+v", got)
	}
	if got := f.stdout(id, "good"); got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
}

// A message of legal size that is far larger when it is decoded is refused, and
// costs little.
func TestC065Amplification(t *testing.T) {
	t.Parallel()
	f := startFrugal(t)
	f.startAgent("good")
	f.waitOnline("good")
	before := f.coordinator.residentKiB()
	head, err := proto.Marshal(registerOf("big"))
	if err != nil {
		t.Fatal(err)
	}
	const room = 60 << 10 // under the 64 KiB of a first message
	entry := func(field protowire.Number, content string) []byte {
		one := protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), content)
		return []byte(strings.Repeat(string(one), room/len(one)))
	}
	for name, tc := range map[string]struct {
		many    []byte
		refused bool
	}{
		"commands": {entry(9, ""), true}, "plugins": {entry(12, ""), true}, "command types": {entry(11, "x"), true},
		"tags without names": {entry(5, ""), true}, "one tag again and again": {entry(5, "\x0a\x01a"), false}, // it is one tag
	} {
		for range 20 {
			p := f.dialled()
			if err := p.sendFrames([]byte("muster.v1.Register"), nil, append(slices.Clone(head), tc.many...)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if frames, err := p.receive(); err != nil || tc.refused != (string(frames[0]) == "muster.v1.Nack") {
				t.Errorf("%s: %q %v", name, frames, err)
			}
			p.Close()
		}
	}
	grown := f.coordinator.residentKiB() - before
	t.Logf("memory grew by %d KiB over 100 registrations", grown)
	if grown > 16<<10 { // 100 times 60 KiB, and what the collector has not taken yet
		t.Errorf("memory grew by %d KiB", grown)
	}

	// Registered peers may send more at a time, and still no more than a registration's worth.
	p := f.registered("raw")
	if err := p.sendFrames([]byte("muster.v1.Register"), nil, slices.Repeat([]byte{9<<3 | 2, 0}, 4<<20-32)); err != nil {
		t.Fatal(err)
	}
	if nack, err := p.nack(); err != nil || nack.Reason != musterv1.Nack_INVALID {
		t.Errorf("8 MiB of commands: %v %v", nack, err)
	}
	p.wantUsable(t, 2)
	f.wantEcho("good")
}

// Numbers and times at the ends of their ranges are refused or bounded; nothing
// overflows into now or never.
func TestC066ExtremeNumbers(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	p := f.dialled()
	reg := registerOf("raw")
	reg.StartupTime = &timestamppb.Timestamp{Seconds: math.MinInt64, Nanos: math.MaxInt32}
	reg.SequenceNum, reg.Capabilities, reg.Journal.Seq = math.MaxUint64, math.MaxUint64, math.MaxUint32
	if err := p.send(reg); err != nil {
		t.Fatal(err)
	}
	if frames, err := p.receive(); err != nil || !slices.Contains([]string{"muster.v1.Registered", "muster.v1.Nack"}, string(frames[0])) {
		t.Fatalf("%q %v", frames, err)
	}
	p.Close()

	p = f.registered("raw2")
	for _, tc := range []struct {
		seq  uint64
		full bool
	}{{2, false}, {2, true}, {1, true}, {0, true}, {math.MaxUint64, true}} {
		if err := p.send(&musterv1.Heartbeat{SequenceNum: tc.seq}); err != nil {
			t.Fatal(err)
		}
		ack := &musterv1.HeartbeatAck{}
		if err := proto.Unmarshal(p.want(t, "muster.v1.HeartbeatAck"), ack); err != nil {
			t.Fatal(err)
		}
		if full := ack.Flags&uint32(musterv1.HeartbeatAck_REPORT_FULL_STATE) != 0; full != tc.full {
			t.Errorf("heartbeat %d: asks for the full state: %v", tc.seq, full)
		}
	}
	if err := p.register("raw2"); err != nil { // it was asked to
		t.Fatal(err)
	}
	p.want(t, "muster.v1.Registered")

	id := f.submit(`{"type":"ping","target":{"agents":["raw2"]}}`)
	p.want(t, "muster.v1.Command")
	code := int32(math.MinInt32)
	if err := p.send(&musterv1.Target{
		CommandId: id, AgentId: "raw2", State: musterv1.Target_FAILED, ExitCode: &code, JournalSeq: math.MaxUint32,
		StartTime: &timestamppb.Timestamp{Seconds: math.MaxInt64}, EndTime: &timestamppb.Timestamp{Seconds: -62135596800},
		Stdout: &musterv1.Output{Size: math.Inf(1), Kept: math.MaxUint32},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.receive(); err != nil { // an ack or a Nack
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/commands/" + id + "/targets", "/v1/commands/" + id + "/targets/raw2", "/v1/agents", "/v1/agents/raw", "/v1/agents/raw2"} {
		if status, answer, err := f.ask("GET", path, ""); err != nil || status >= 500 {
			t.Errorf("GET %s: %d %s %v", path, status, answer, err)
		}
	}
	for _, field := range []string{
		`"timeout":"-1s"`, `"timeout":"0s"`, `"timeout":"1ns"`, `"timeout":"9223372036854775807s"`, `"timeout":"106751d"`, `"timeout":"1e9s"`,
		`"expires_in":"9223372036854775807ns"`, `"expires_in":"-9223372036854775808s"`, `"expire_time":"9999-12-31T23:59:59Z"`, `"expire_time":"0001-01-01T00:00:00Z"`,
		`"rollout":{"batch":"-5%"}`, `"rollout":{"batch":"abc"}`, `"rollout":{"batch":0}`, `"rollout":{"canary":"101%"}`, `"rollout":{"max_failures":"9223372036854775808"}`, `"rollout":{"batch":1.5}`,
	} {
		status, answer, err := f.ask("POST", "/v1/commands", `{"type":"ping","target":{"agents":["raw2"]},`+field+`}`)
		if name := strings.Trim(strings.SplitN(field, `"`, 3)[1], `"`); err != nil || status != http.StatusUnprocessableEntity || !strings.Contains(string(answer), name) {
			t.Errorf("%s: %d %s %v", field, status, answer, err)
		}
	}
}
