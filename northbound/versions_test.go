package northbound

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const octets = "Content-Type: application/octet-stream"

// The two forms of a POST are one request.
func TestVersionIsPostedInTwoForms(t *testing.T) {
	fake := working()
	var asked *musterv1.CreateConfigVersionRequest
	fake.configs.create = func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		asked = r
		return &musterv1.ConfigVersion{Config: r.GetConfig(), Version: 4, Size: 3, Sha256: "00ff"}, nil
	}
	s := service(t, fake)
	want := &musterv1.CreateConfigVersionRequest{
		Config: "nginx", Content: []byte("a\r\n\x00\xff"), Note: "why", BaseVersion: 3, UnlessSame: true,
		File: &musterv1.FileSpec{Path: "n/x.conf", Mode: "0640", CheckCmd: []string{"nginx", "-t", "{}"}, ReloadCmd: []string{}, Timeout: durationpb.New(90 * time.Second)},
	}
	for form, post := range map[string]func() *reply{
		"JSON": func() *reply {
			return s.do(t, "POST", "/v1/configs/nginx/versions?base_version=3&unless_same=1",
				`{"content":"YQ0KAP8=","note":"why","file":{"path":"n/x.conf","mode":"0640","check_cmd":["nginx","-t","{}"],"timeout":"90s"}}`)
		},
		"bytes": func() *reply {
			return s.do(t, "POST", `/v1/configs/nginx/versions?base_version=3&unless_same=true&note=why&path=n/x.conf&mode=0640&timeout=90s&check_cmd=["nginx","-t","{}"]&reload_cmd=[]`,
				"a\r\n\x00\xff", octets)
		},
	} {
		got := post()
		if got.status != 201 || got.header.Get("Location") != "/v1/configs/nginx/versions/4" || string(got.body) != `{"config":"nginx","version":4,"size":3,"sha256":"00ff"}` {
			t.Errorf("%s: %d %v %s", form, got.status, got.header, got.body)
		}
		if !proto.Equal(asked, want) {
			t.Errorf("%s: asked for %v", form, asked)
		}
	}
	got := s.do(t, "POST", "/v1/configs/nginx/versions?dry_run=1", "x", octets)
	if want := (&musterv1.CreateConfigVersionRequest{Config: "nginx", Content: []byte("x"), DryRun: true}); got.status != 200 || !proto.Equal(asked, want) {
		t.Errorf("dry run: %d, asked for %v", got.status, asked)
	}
	s.do(t, "POST", "/v1/configs/nginx/versions?dry_run=1&kind=INSTANCE", "{}", octets)
	if want := (&musterv1.CreateConfigVersionRequest{Config: "nginx", Content: []byte("{}"), DryRun: true, Kind: musterv1.Config_INSTANCE}); !proto.Equal(asked, want) {
		t.Errorf("dry run with a kind: asked for %v", asked)
	}
	fake.configs.get = func(*musterv1.GetConfigRequest) (*musterv1.Config, error) {
		return nil, refused(codes.NotFound, "config is not known", &errdetails.ErrorInfo{Reason: "NOT_FOUND"})
	}
	if got := s.do(t, "POST", "/v1/configs/nginx/versions?dry_run=1&kind=INSTANCE&unless_same=1", "{}", octets); got.status != 200 {
		t.Errorf("dry run of the first version: %d %s", got.status, got.body)
	}
	// The version that was there is no new one.
	fake.configs.get = func(r *musterv1.GetConfigRequest) (*musterv1.Config, error) {
		return &musterv1.Config{Name: r.GetName(), LatestVersion: 4}, nil
	}
	if got := s.do(t, "POST", "/v1/configs/nginx/versions?unless_same=1", "x", octets); got.status != 200 {
		t.Errorf("the same: %d", got.status)
	}
	if got := s.do(t, "POST", "/v1/configs/nginx/versions", "x", octets); got.status != 201 {
		t.Errorf("not asked for: %d", got.status)
	}
	// An empty file is a file.
	if got := s.do(t, "POST", "/v1/configs/nginx/versions", "", octets); got.status != 201 || asked.GetConfig() != "nginx" || len(asked.GetContent()) != 0 {
		t.Errorf("empty: %d, asked for %v", got.status, asked)
	}
}

func TestC098BadVersionsMakeNothing(t *testing.T) {
	fake := working()
	fake.configs.create = func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		t.Errorf("made %v", r)
		return &musterv1.ConfigVersion{}, nil
	}
	s := service(t, fake)
	const path = "/v1/configs/nginx/versions"
	for body, code := range map[string]string{
		`{"content":"a"}`: "INVALID_VALUE", `{"content":"YQ"}`: "INVALID_VALUE", `{"content":"YQ==\n"}`: "INVALID_VALUE", `{"content":[97]}`: "WRONG_TYPE",
		`{"content":null}`: "NULL", `{"config":"x"}`: "IN_PATH", `{"base_version":1}`: "IN_QUERY", `{"dry_run":true}`: "IN_QUERY", `{"unless_same":true}`: "IN_QUERY",
		`{"file":{"timeout":30}}`: "WRONG_TYPE", `{"file":{"timeout":"-1s"}}`: "INVALID_VALUE", `{"file":{"check_cmd":"nginx -t"}}`: "WRONG_TYPE", `{"path":"x"}`: "UNKNOWN_FIELD",
	} {
		s.do(t, "POST", path, body).want(t, 422, code)
	}
	for query, field := range map[string]string{
		"base_version=0": "base_version", "base_version=x": "base_version", "kind=file": "kind", "unless_same=yes": "unless_same", "dry_run=2": "dry_run", "timeout=30": "timeout", "timeout=-1s": "timeout",
		"check_cmd=nginx": "check_cmd", `check_cmd={"a":1}`: "check_cmd", "check_cmd=null": "check_cmd", "check_cmd=[null]": "check_cmd", "reload_cmd=[1]": "reload_cmd",
		`reload_cmd=["a"],"path":"x"`: "reload_cmd", "content=x": "content", "config=x": "config",
	} {
		p := s.do(t, "POST", path+"?"+query, "x", octets)
		if got := p.problem(t); got.Status != 400 || len(got.Errors) != 1 || got.Errors[0].Field != field {
			t.Errorf("%s: %s", query, p.body)
		}
	}
	// A parameter of the other form does not count in silence.
	s.do(t, "POST", path+"?path=x", `{}`).want(t, 400, "UNKNOWN_PARAMETER")
	s.do(t, "POST", path, "").want(t, 400, "EMPTY_BODY")
	s.do(t, "POST", path+"?path=x", "x=1", "Content-Type: application/x-www-form-urlencoded").want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
	s.do(t, "POST", path, "x", "Content-Type: text/plain").want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
}

func TestC093ContentIsBytes(t *testing.T) {
	fake := working()
	var size int
	fake.configs.create = func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		size = len(r.GetContent())
		if size > maxContent {
			return nil, refused(codes.InvalidArgument, "too large", violations("content", "over 4 MiB"), &errdetails.ErrorInfo{Reason: "CONTENT_TOO_LARGE"})
		}
		return &musterv1.ConfigVersion{Version: 1}, nil
	}
	s := service(t, fake)
	const path = "/v1/configs/nginx/versions"
	full := strings.Repeat("\xff\x00\r\n", maxContent/4)
	if got := s.do(t, "POST", path, full, octets); got.status != 201 || size != maxContent {
		t.Errorf("4 MiB: %d, %d bytes", got.status, size)
	}
	asJSON := func(content string) string {
		return `{"content":"` + base64.StdEncoding.EncodeToString([]byte(content)) + `"}`
	}
	size = 0
	if got := s.do(t, "POST", path, asJSON(full)); got.status != 201 || size != maxContent {
		t.Errorf("4 MiB as base64: %d, %d bytes", got.status, size)
	}
	s.do(t, "POST", path, full+"x", octets).want(t, 413, "BODY_TOO_LARGE")
	s.do(t, "POST", path, asJSON(full+"x")).want(t, 413, "CONTENT_TOO_LARGE")
	s.do(t, "POST", path, asJSON(full+full[:maxContent/8])).want(t, 413, "BODY_TOO_LARGE")
	// The room is for content alone.
	s.do(t, "PUT", "/v1/configs/nginx", asJSON(full)).want(t, 413, "BODY_TOO_LARGE")
	s.do(t, "POST", "/v1/configs/nginx/rollouts", asJSON(full)).want(t, 413, "BODY_TOO_LARGE")
}

func TestVersionsAreListed(t *testing.T) {
	fake := working()
	var asked *musterv1.ListConfigVersionsRequest
	fake.configs.versions = func(r *musterv1.ListConfigVersionsRequest) (*musterv1.ListConfigVersionsResponse, error) {
		asked = r
		return &musterv1.ListConfigVersionsResponse{Versions: []*musterv1.ConfigVersion{{Config: "nginx", Version: 2, File: &musterv1.FileSpec{Timeout: durationpb.New(time.Minute)}}}}, nil
	}
	s := service(t, fake)
	if got := s.do(t, "GET", "/v1/configs/nginx/versions", ""); string(got.body) != `{"versions":[{"config":"nginx","version":2,"file":{"timeout":"1m"}}]}` || asked.GetAscending() {
		t.Errorf("got %d %s, asked for %v", got.status, got.body, asked)
	}
	s.do(t, "GET", "/v1/configs/nginx/versions?order=asc&page_size=3&page_token=t", "")
	if want := (&musterv1.ListConfigVersionsRequest{Config: "nginx", Ascending: true, PageSize: 3, PageToken: "t"}); !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "GET", "/v1/configs/nginx/versions/2147483647", ""); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	for _, n := range []string{"0", "-1", "01", "+1", "1.0", "2147483648", "latest", "1%2F2", "%00"} {
		for _, rest := range []string{"", "/content"} {
			if p := s.do(t, "GET", "/v1/configs/nginx/versions/"+n+rest, "").want(t, 400, "INVALID_PARAMETER"); p.Errors[0].Field != "version" {
				t.Errorf("%s: %v", n, p.Errors)
			}
		}
	}
}

func TestContentIsReadAsItIs(t *testing.T) {
	fake := working()
	fake.configs.version = func(r *musterv1.GetConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		return &musterv1.ConfigVersion{Config: r.GetConfig(), Version: r.GetVersion(), Size: 6, Sha256: "00ff"}, nil
	}
	parts := []string{"a\r\n", "\x00\xff\n"}
	var fails error
	fake.configs.content = func(r *musterv1.ReadConfigContentRequest, send func(string) error) error {
		if r.GetConfig() != "nginx" || r.GetVersion() != 3 {
			t.Errorf("asked for %v", r)
		}
		for _, part := range parts {
			if err := send(part); err != nil {
				return err
			}
		}
		return fails
	}
	n := serve(t, fake)
	const path = "/v1/configs/nginx/versions/3/content"
	ask := func(method, headers string) (*http.Response, []byte, error) {
		c := n.dial(t)
		c.send(t, method+" "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n"+headers+"\r\n")
		res, err := http.ReadResponse(c.in, &http.Request{Method: method})
		if err != nil {
			return nil, nil, err
		}
		defer res.Body.Close()
		var body bytes.Buffer
		_, err = body.ReadFrom(res.Body)
		return res, body.Bytes(), err
	}
	res, body, err := ask("GET", "")
	if err != nil || res.StatusCode != 200 || string(body) != "a\r\n\x00\xff\n" || res.ContentLength != 6 || res.Header.Get("ETag") != `"00ff"` ||
		res.Header.Get("Content-Type") != "application/octet-stream" || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v %v %q", err, res, body)
	}
	if res, body, err := ask("HEAD", ""); err != nil || res.StatusCode != 200 || len(body) > 0 || res.ContentLength != 6 {
		t.Errorf("HEAD: %v %v %q", err, res, body)
	}
	if res, body, err := ask("GET", `If-None-Match: "00ff"`+"\r\n"); err != nil || res.StatusCode != 304 || len(body) > 0 || res.Header.Get("ETag") != `"00ff"` {
		t.Errorf("If-None-Match: %v %v %q", err, res, body)
	}
	// What is not the whole does not look so.
	for _, tc := range []struct {
		parts []string
		fails error
	}{
		{[]string{"a\r\n"}, nil},
		{[]string{"a\r\n"}, errors.New("disk")},
		{[]string{"a\r\n", "\x00\xff\nmore"}, nil},
	} {
		parts, fails = tc.parts, tc.fails
		if _, body, err := ask("GET", ""); err == nil {
			t.Errorf("%q, then %v: %q looks whole", tc.parts, tc.fails, body)
		}
	}
	// Nothing is out yet: the failure has a status of its own.
	for _, fail := range []error{refused(codes.NotFound, "version is not known"), refused(codes.Unavailable, "no disk", &errdetails.ErrorInfo{Reason: "STORE_UNAVAILABLE"})} {
		parts, fails = nil, fail
		res, body, err := ask("GET", "")
		if err != nil || res.StatusCode < 400 || res.Header.Get("ETag") != "" || res.ContentLength != int64(len(body)) || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v: %v %v %s", fail, err, res, body)
		}
	}
}

// C088: a name is never a path. REST hands each on as it is, for the
// coordinator to judge, whatever way it is written in.
func TestC088NamesReachTheCoordinatorWhole(t *testing.T) {
	fake := working()
	var asked string
	judge := func(name string) error {
		asked = name
		return refused(codes.InvalidArgument, "not a name", violations("name", "is not a name"), &errdetails.ErrorInfo{Reason: "INVALID_FIELD"})
	}
	fake.configs.get = func(r *musterv1.GetConfigRequest) (*musterv1.Config, error) { return nil, judge(r.GetName()) }
	fake.configs.put = func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
		return nil, judge(r.GetConfig().GetName())
	}
	fake.configs.remove = func(r *musterv1.DeleteConfigRequest) (*musterv1.DeleteConfigResponse, error) {
		return nil, judge(r.GetName())
	}
	fake.configs.create = func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		return nil, judge(r.GetConfig())
	}
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) { return nil, judge(r.GetGroup().GetName()) }
	n := serve(t, fake)
	ask := func(method, path string) *reply {
		c := n.dial(t)
		body := ""
		if method != "GET" {
			body = "{}"
		}
		c.send(t, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body))
		return c.answer(t, method)
	}
	long := strings.Repeat("x", 300)
	for path, name := range map[string]string{
		"..%2fx": "../x", "%2e%2e": "..", "..": "..", ".": ".", "%2e%2e%2fx": "../x", "%2Fetc%2Fx": "/etc/x", "%00": "\x00", "a%00b": "a\x00b", "%252e%252e": "%2e%2e",
		"%5c..%5cx": `\..\x`, ".x": ".x", "x%0a": "x\n", "x%20": "x ", "%D1%8F": "я", long: long,
	} {
		for _, route := range []struct{ method, path string }{
			{"GET", "/v1/configs/" + path}, {"PUT", "/v1/configs/" + path}, {"DELETE", "/v1/configs/" + path}, {"POST", "/v1/configs/" + path + "/versions"}, {"PUT", "/v1/groups/" + path},
		} {
			asked = "nothing"
			p := ask(route.method, route.path).problem(t)
			if p.Status < 400 || p.Status > 499 || len(p.Errors) != 1 || p.Errors[0].Field != "name" || asked != name {
				t.Errorf("%s %s: %d %v, asked for %q", route.method, route.path, p.Status, p.Errors, asked)
			}
		}
	}
	// With a real slash it is another path.
	for _, path := range []string{"../x", "a/../../x", "a/b", "/etc/x", "../../v1/configs/x"} {
		asked = "nothing"
		if got := ask("GET", "/v1/configs/"+path); got.status < 400 || got.status > 499 || asked != "nothing" {
			t.Errorf("%s: %d, asked for %q", path, got.status, asked)
		}
	}
}
