package northbound

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestWrite(t *testing.T) {
	moment := timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 250e6, time.FixedZone("", 7200)))
	for _, tc := range []struct {
		message proto.Message
		want    string
	}{
		{&musterv1.Command{}, `{}`},
		{&musterv1.ListCommandsResponse{}, `{"commands":[]}`},
		{&musterv1.ListAgentsResponse{Agents: []*musterv1.Agent{{}}, NextPageToken: "x"}, `{"agents":[{}],"next_page_token":"x"}`},
		{
			&musterv1.Command{
				Id: "01J", Name: "a\"\\\n\t\x01<&>é\u2028", Input: []byte(`{"n": 9007199254740993}`), Target: &musterv1.TargetSelector{},
				Timeout: durationpb.New(90 * time.Minute), ExpiresIn: durationpb.New(0), CreateTime: moment,
				Labels: map[string]string{"b": "2", "a": ""}, WhenOffline: musterv1.Command_CANCEL, State: musterv1.Command_OPEN,
				Counts: &musterv1.Counts{Total: 2, Queued: 2},
			},
			`{"id":"01J","name":"a\"\\\n\t\u0001<&>é` + "\u2028" + `","input":{"n": 9007199254740993},"target":{},"timeout":"1h30m","expires_in":"0s",` +
				`"labels":{"a":"","b":"2"},"when_offline":"CANCEL","state":"OPEN","counts":{"total":2,"queued":2},"create_time":"2026-05-01T10:00:00.25Z"}`,
		},
		{
			&musterv1.Target{ExitCode: proto.Int32(0), JournalSeq: 7, Stdout: &musterv1.Output{Size: 1 << 40, Kept: 1}, Stderr: &musterv1.Output{Size: 1.5}},
			`{"exit_code":0,"stdout":{"size":1099511627776,"kept":1},"stderr":{"size":1.5}}`,
		},
		{&musterv1.Rollout{Canary: "5", Batch: "10%", MaxFailures: "007"}, `{"canary":5,"batch":"10%","max_failures":"007"}`},
		{&musterv1.Target{ExitCode: proto.Int32(-1)}, `{"exit_code":-1}`},
		{&musterv1.Agent{Journal: &musterv1.JournalPosition{Epoch: "secret"}, CommandTypes: []string{"exec", "ping"}}, `{"command_types":["exec","ping"]}`},
		{&musterv1.OutputChunk{Data: []byte("\xff\x00"), Stream: musterv1.Stream_STDOUT}, `{"stream":"STDOUT","data":"/wA="}`},
	} {
		if got := string(writeJSON(tc.message)); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// One row that JSON cannot hold must not fail its page.
func TestUnreadableValuesAreToldBesideTheRest(t *testing.T) {
	page := &musterv1.ListCommandsResponse{Commands: []*musterv1.Command{
		{Id: "good", Type: "ping"},
		{
			Id: "bad", Name: "\xff", Input: []byte(`{"a":`), Timeout: &durationpb.Duration{Seconds: 315576000000},
			Target: &musterv1.TargetSelector{Agents: []string{"a", "\xfe", "c"}}, Labels: map[string]string{"\xfd": "v", "k": "\xfc", "ok": "1"},
			State: 99, EndTime: &timestamppb.Timestamp{Seconds: math.MaxInt64},
		},
	}}
	want := `{"commands":[{"id":"good","type":"ping"},{"id":"bad","target":{"agents":["a","c"],"unreadable":[` +
		`{"field":"agents[1]","reason":"not UTF-8","base64":"/g=="}]},"labels":{"ok":"1"},"unreadable":[` +
		`{"field":"name","reason":"not UTF-8","base64":"/w=="},` +
		`{"field":"input","reason":"not JSON","base64":"eyJhIjo="},` +
		`{"field":"timeout","reason":"duration out of range","base64":"CIC8rs6XCQ=="},` +
		`{"field":"labels.k","reason":"not UTF-8","base64":"/A=="},` +
		`{"field":"labels","reason":"the key is not UTF-8","base64":"/Q=="},` +
		`{"field":"state","reason":"unknown value 99; the coordinator is newer than this service"},` +
		`{"field":"end_time","reason":"time out of range","base64":"CP//////////fw=="}]}]}`
	got := writeJSON(page)
	if string(got) != want || !json.Valid(got) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = writeJSON(&musterv1.Output{Size: math.NaN(), Kept: 1})
	if string(got) != `{"kept":1,"unreadable":[{"field":"size","reason":"not a finite number"}]}` {
		t.Errorf("got %s", got)
	}
}

func TestDurationsReadAsTheyAreShown(t *testing.T) {
	for _, text := range []string{"0s", "250ms", "1.5s", "30s", "1m", "1m30s", "1h", "1h30m", "1h0m5s", "720h", "1µs", "1ns"} {
		d, err := parseDuration(text)
		if err != nil || formatDuration(d) != text {
			t.Errorf("%q is read as %v, %v and shown as %q", text, d, err, formatDuration(d))
		}
	}
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "0": 0} {
		if d, err := parseDuration(text); err != nil || d != want {
			t.Errorf("%q is read as %v, %v", text, d, err)
		}
	}
}

// A new field of a kind that the codec does not know must fail here, not at the
// first user who meets it.
func TestCodecKnowsEveryField(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var check func(protoreflect.MessageDescriptor)
	check = func(md protoreflect.MessageDescriptor) {
		if seen[md.FullName()] || md.FullName() == timestampName || md.FullName() == durationName {
			return
		}
		seen[md.FullName()] = true
		for i := range md.Oneofs().Len() {
			if !md.Oneofs().Get(i).IsSynthetic() {
				t.Errorf("%s: the reader does not refuse two members of a oneof", md.Oneofs().Get(i).FullName())
			}
		}
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if isInternal(fd) {
				continue
			}
			if fd.Name() == "unreadable" {
				t.Errorf("%s has the name of the writer's own member", fd.FullName())
			}
			if fd.IsMap() {
				if fd.MapKey().Kind() != protoreflect.StringKind {
					t.Errorf("%s: keys must be strings", fd.FullName())
				}
				fd = fd.MapValue()
			}
			switch fd.Kind() {
			case protoreflect.MessageKind:
				check(fd.Message())
			case protoreflect.EnumKind:
				if fd.Enum().Values().ByNumber(0) == nil {
					t.Errorf("%s: no value 0", fd.Enum().FullName())
				}
			case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.DoubleKind, protoreflect.BytesKind:
			default:
				t.Errorf("%s: the codec does not know %s", fd.FullName(), fd.Kind())
			}
		}
	}
	for _, file := range []protoreflect.FileDescriptor{musterv1.File_muster_v1_agent_proto, musterv1.File_muster_v1_command_proto, musterv1.File_muster_v1_event_proto, musterv1.File_muster_v1_key_proto,
		musterv1.File_muster_v1_group_proto, musterv1.File_muster_v1_config_proto, musterv1.File_muster_v1_rollout_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				check(methods.Get(j).Input())
				check(methods.Get(j).Output())
			}
		}
	}
	for name := range notInCommand {
		if (&musterv1.Command{}).ProtoReflect().Descriptor().Fields().ByName(name.Name()) == nil {
			t.Errorf("%s is refused in requests and does not exist", name)
		}
	}
}
