package northbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var anyField notInBody

func TestReadCommand(t *testing.T) {
	got := &musterv1.Command{}
	err := readJSON([]byte(`
		{"type": "exec", "name": "caf\u00e9 \ud83d\ude00 / \/", "input": {"argv": ["a",  "b"], "n": 9007199254740993},
		 "target": {"agents": ["web-1", "web-2"]}, "timeout": "1h30m", "expires_in": "7d12h",
		 "idempotent": true, "labels": {"env": "prod", "": "empty key"}, "when_offline": "QUEUE",
		 "rollout": {"canary": 5, "batch": "10%", "max_failures": "3"}}
	`), got, notInCommand)
	if err != nil {
		t.Fatal(err)
	}
	want := &musterv1.Command{
		Type: "exec", Name: "café 😀 / /", Input: []byte(`{"argv": ["a",  "b"], "n": 9007199254740993}`),
		Target:  &musterv1.TargetSelector{Agents: []string{"web-1", "web-2"}},
		Timeout: durationpb.New(90 * time.Minute), ExpiresIn: durationpb.New(180 * time.Hour),
		Idempotent: true, Labels: map[string]string{"env": "prod", "": "empty key"}, WhenOffline: musterv1.Command_QUEUE,
		Rollout: &musterv1.Rollout{Canary: "5", Batch: "10%", MaxFailures: "3"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestC098ReaderNamesTheField(t *testing.T) {
	deep := strings.Repeat("[", 10_000)
	for _, tc := range []struct{ body, code, path, message string }{
		{`{"timeuot":"1s"}`, "UNKNOWN_FIELD", "timeuot", `did you mean "timeout"`},
		{`{"expiresIn":"1s"}`, "UNKNOWN_FIELD", "expiresIn", `did you mean "expires_in"`},
		{`{"zzzzzzzzzz":1}`, "UNKNOWN_FIELD", "zzzzzzzzzz", "the fields here are type, name, input, target"},
		{`{"target":{"agnets":[]}}`, "UNKNOWN_FIELD", "target.agnets", `did you mean "agents"`},
		{`{"type":"a","type":"a"}`, "DUPLICATE_FIELD", "type", "twice"},
		{`{"type":"a","\u0074ype":"a"}`, "DUPLICATE_FIELD", "type", "twice"},
		{`{"labels":{"a":"1","a":"2"}}`, "DUPLICATE_FIELD", "labels.a", "twice"},
		{`{"input":{"deep":[{"x":1,"x":2}]}}`, "DUPLICATE_FIELD", "input.deep[0].x", "twice"},
		{`{"target":{"agents":["a","b",3]}}`, "WRONG_TYPE", "target.agents[2]", "must be a string, not a number"},
		{`{"target":{"agents":"a"}}`, "WRONG_TYPE", "target.agents", "must be an array, not a string"},
		{`{"target":["a"]}`, "WRONG_TYPE", "target", "must be an object, not an array"},
		{`{"target":null}`, "NULL", "target", "leave the field out"},
		{`{"type":null}`, "NULL", "type", "leave the field out"},
		{`{"input":null}`, "NULL", "input", "leave the field out"},
		{`{"target":{"agents":[null]}}`, "NULL", "target.agents[0]", "must be a string"},
		{`{"labels":{"a b":1}}`, "WRONG_TYPE", `labels["a b"]`, "must be a string"},
		{`{"labels":[]}`, "WRONG_TYPE", "labels", "must be an object"},
		{`{"idempotent":"true"}`, "WRONG_TYPE", "idempotent", "must be true or false, not a string"},
		{`{"idempotent":1}`, "WRONG_TYPE", "idempotent", "not a number"},
		{`{"type":true}`, "WRONG_TYPE", "type", "must be a string, not true"},
		{`{"timeout":90}`, "WRONG_TYPE", "timeout", `"90s"`},
		{`{"timeout":"90"}`, "INVALID_VALUE", "timeout", "must be a duration"},
		{`{"timeout":"-1s"}`, "INVALID_VALUE", "timeout", "negative"},
		{`{"timeout":""}`, "INVALID_VALUE", "timeout", "must be a duration"},
		{`{"timeout":"1.5d"}`, "INVALID_VALUE", "timeout", "must be a duration"},
		{`{"timeout":"106751d24h"}`, "INVALID_VALUE", "timeout", "must be a duration"},
		{`{"when_offline":"queue"}`, "INVALID_VALUE", "when_offline", "one of QUEUE, CANCEL"},
		{`{"when_offline":"WHEN_OFFLINE_UNSPECIFIED"}`, "INVALID_VALUE", "when_offline", "one of QUEUE, CANCEL"},
		{`{"when_offline":1}`, "WRONG_TYPE", "when_offline", "one of QUEUE, CANCEL, not a number"},
		{`{"rollout":{"batch":1.5}}`, "WRONG_TYPE", "rollout.batch", "whole number"},
		{`{"rollout":{"batch":-1}}`, "OUT_OF_RANGE", "rollout.batch", "from 0"},
		{`{"rollout":{"batch":true}}`, "WRONG_TYPE", "rollout.batch", `a count or a share such as "10%"`},
		{`{"state_reason":"x"}`, "SET_BY_SERVER", "state_reason", "set by the server"},
		{`{"id":"x"}`, "SET_BY_SERVER", "id", "set by the server"},
		{`{"id":9007199254740993}`, "SET_BY_SERVER", "id", "set by the server"},
		{`{"state":"OPEN"}`, "SET_BY_SERVER", "state", "set by the server"},
		{`{"counts":{}}`, "SET_BY_SERVER", "counts", "set by the server"},
		{`{"create_time":"2026-01-01T00:00:00Z"}`, "SET_BY_SERVER", "create_time", "set by the server"},
		{`{"type":"` + "\xff" + `"}`, "INVALID_UTF8", "type", "not UTF-8"},
		{`{"labels":{"a":"\ud800"}}`, "INVALID_UTF8", "labels.a", "surrogate"},
		{`{"input":{"a":"\ud800\u0041"}}`, "INVALID_UTF8", "input.a", "surrogate"},
		{`{"input":` + deep, "TOO_DEEP", "", "100 deep"},
		{`{} {}`, "TRAILING_DATA", "", "follows"},
		{`{}x`, "TRAILING_DATA", "", "follows"},
		{`{"type":"a"`, "MALFORMED_JSON", "", "the body ends at line 1, column 12"},
		{"{\n  \"type\" \"a\"}", "MALFORMED_JSON", "", `'"' at line 2, column 10; want a colon`},
		{`{"target":{"agents":["a",]}}`, "MALFORMED_JSON", "target.agents[1]", "line 1, column 26"},
		{"\ufeff{}", "MALFORMED_JSON", "", "line 1, column 1"},
		{"{\x00\"\x00}\x00", "MALFORMED_JSON", "", "column 2"}, // UTF-16
		{`[]`, "NOT_AN_OBJECT", "", "object"},
		{`null`, "NOT_AN_OBJECT", "", "object"},
		{`"x"`, "NOT_AN_OBJECT", "", "object"},
		{`7`, "NOT_AN_OBJECT", "", "object"},
	} {
		err := readJSON([]byte(tc.body), &musterv1.Command{}, notInCommand)
		var f *fault
		if !errors.As(err, &f) {
			t.Errorf("%.60s: got %v, want a fault", tc.body, err)
			continue
		}
		if f.Code != tc.code || !strings.Contains(f.Message, tc.message) || f.Path != tc.path && tc.code != "TOO_DEEP" {
			t.Errorf("%.60s: got %s at %q: %s\nwant %s at %q: %s", tc.body, f.Code, f.Path, f.Message, tc.code, tc.path, tc.message)
		}
	}
}

func TestReaderKnowsTheOtherKinds(t *testing.T) {
	got := &musterv1.Target{}
	if err := readJSON([]byte(`{"exit_code":0,"start_time":"2026-05-01T02:00:00.5+02:00","stdout":{"size":1e3,"kept":4294967295}}`), got, anyField); err != nil {
		t.Fatal(err)
	}
	if got.ExitCode == nil || got.GetStdout().GetKept() != 1<<32-1 || got.GetStdout().GetSize() != 1000 ||
		!got.GetStartTime().AsTime().Equal(time.Date(2026, 5, 1, 0, 0, 0, 5e8, time.UTC)) {
		t.Errorf("got %v", got)
	}
	chunk := &musterv1.OutputChunk{}
	if err := readJSON([]byte(`{"data":"aGk=","stream":"STDERR"}`), chunk, anyField); err != nil || string(chunk.GetData()) != "hi" || chunk.GetStream() != musterv1.Stream_STDERR {
		t.Errorf("got %v, %v", chunk, err)
	}
	for body, code := range map[string]string{
		`{"exit_code":2147483648}`:                         "OUT_OF_RANGE",
		`{"exit_code":1.0}`:                                "WRONG_TYPE",
		`{"exit_code":1e2}`:                                "WRONG_TYPE",
		`{"exit_code":"1"}`:                                "WRONG_TYPE",
		`{"exit_code":99999999999999999999}`:               "OUT_OF_RANGE",
		`{"exit_code":01}`:                                 "MALFORMED_JSON",
		`{"stdout":{"kept":-1}}`:                           "OUT_OF_RANGE",
		`{"stdout":{"size":1e999}}`:                        "OUT_OF_RANGE",
		`{"stdout":{"size":"1"}}`:                          "WRONG_TYPE",
		`{"start_time":"2026-05-01 02:00:00"}`:             "INVALID_VALUE",
		`{"start_time":"2026-05-01T02:00:00,5Z"}`:          "INVALID_VALUE",
		`{"start_time":"0000-12-31T23:59:59Z"}`:            "OUT_OF_RANGE",
		`{"start_time":1746000000}`:                        "WRONG_TYPE",
		`{"journal_seq":1}`:                                "UNKNOWN_FIELD", // internal
		`{"state":"STATE_UNSPECIFIED"}`:                    "INVALID_VALUE",
		`{"stdout":{"size":1,"kept":1,"sha256":"","x":1}}`: "UNKNOWN_FIELD",
	} {
		var f *fault
		if err := readJSON([]byte(body), &musterv1.Target{}, anyField); !errors.As(err, &f) || f.Code != code {
			t.Errorf("%s: got %v, want %s", body, err, code)
		}
	}
	for _, body := range []string{`{"data":"aGk"}`, `{"data":"aGl="}`, `{"data":"aG\nk="}`, `{"data":[104]}`} {
		if err := readJSON([]byte(body), &musterv1.OutputChunk{}, anyField); err == nil {
			t.Errorf("%s is taken", body)
		}
	}
}

// The suite's y_ files are JSON and its n_ files are not, as the body and as
// the free JSON in it. muster is stricter than JSON in three things, and its
// nesting limit and its texts decide the i_ files.
func TestC098JSONSuite(t *testing.T) {
	stricter := map[string]string{
		"y_object_duplicated_key.json":           "DUPLICATE_FIELD",
		"y_object_duplicated_key_and_value.json": "DUPLICATE_FIELD",
		"y_structure_lonely_null.json":           "NULL",
	}
	files, err := filepath.Glob("testdata/json/*.json")
	if err != nil || len(files) < 300 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		body := append(append([]byte(`{"input":`), text...), '}')
		got := &musterv1.Command{}
		err = readJSON(body, got, notInCommand)
		var f *fault
		if err != nil && !errors.As(err, &f) {
			t.Fatalf("%s: %v is no fault", name, err)
		}
		switch {
		case stricter[name] != "":
			if f == nil || f.Code != stricter[name] {
				t.Errorf("%s: %v, want %s", name, err, stricter[name])
			}
		case name[0] == 'y':
			if err != nil || !bytes.Equal(got.GetInput(), bytes.Trim(text, " \t\r\n")) {
				t.Errorf("%s: %q, %v", name, got.GetInput(), err)
			}
		case name[0] == 'n':
			if err == nil && !strings.HasPrefix(name, "n_structure_object_followed_by_closing_object") {
				t.Errorf("%s: %q is taken", name, text)
			}
		}
		if err == nil && !json.Valid(got.GetInput()) {
			t.Errorf("%s: %q is taken and is not JSON", name, got.GetInput())
		}
		if err := readJSON(text, &musterv1.Command{}, notInCommand); err == nil && !bytes.Equal(bytes.TrimSpace(text), []byte("{}")) {
			t.Errorf("%s: %q is taken as a command", name, text)
		}
	}
}

func TestC098DeepNesting(t *testing.T) {
	for _, unit := range []string{"[", `[{"":`, `{"a":`} {
		for _, count := range []int{101, 10_000, 100_000} {
			body := `{"input":` + strings.Repeat(unit, count)
			var f *fault
			if err := readJSON([]byte(body), &musterv1.Command{}, notInCommand); !errors.As(err, &f) || f.Code != "TOO_DEEP" {
				t.Errorf("%d times %q: %.100v", count, unit, err)
			}
		}
	}
	body := `{"input":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "}"
	if err := readJSON([]byte(body), &musterv1.Command{}, notInCommand); err != nil {
		t.Errorf("100 deep: %v", err)
	}
}

// Whatever the reader takes, the writer shows so that it reads the same.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"type":"exec","name":"uptime","input":{"argv":["uptime"]},"target":{"agents":["web-1"],"all":true},"timeout":"30s","labels":{"a":"b"}}`,
		`{"timeout":"0.1ns","expires_in":"106751d","create_time":"9999-12-31T23:59:59.999999999Z","state":"DONE","counts":{"total":7}}`,
		`{"command_id":"x","exit_code":0,"result":[1e400,"\u2028"],"stdout":{"size":1.5e300},"stderr":{}}`,
		`{"commands":[{"input":  9007199254740993 },{}],"next_page_token":"\u0000"}`,
		`{"rollout":{"canary":5,"batch":"10%","max_failures":"007"}}`, `{"input":"\ud83d\ude00\ud83d"}`, `{"offset":1,"data":"AAEC/w==","stream":"STDOUT"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, m := range []proto.Message{&musterv1.Command{}, &musterv1.Target{}, &musterv1.Agent{}, &musterv1.ListCommandsResponse{}, &musterv1.OutputChunk{}} {
			if err := readJSON(body, m, anyField); err != nil {
				var f *fault
				if !errors.As(err, &f) {
					t.Fatalf("%v is no fault", err)
				}
				continue
			}
			shown := writeJSON(m)
			if !json.Valid(shown) || bytes.Contains(shown, []byte(`"unreadable":`)) && !bytes.Contains(body, []byte("unreadable")) {
				t.Fatalf("%q is shown as %q", body, shown)
			}
			again := m.ProtoReflect().New().Interface()
			if err := readJSON(shown, again, anyField); err != nil || !proto.Equal(m, again) {
				t.Fatalf("%q is shown as %q and read as %v, %v", body, shown, again, err)
			}
		}
	})
}
