package northbound

import (
	"testing"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestConfigIsPut(t *testing.T) {
	fake := working()
	var asked *musterv1.PutConfigRequest
	fake.configs.put = func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
		asked = r
		made := proto.CloneOf(r.GetConfig())
		made.Etag, made.LatestVersion = "e2", 3
		return made, nil
	}
	s := service(t, fake)
	const body = `{"kind":"PIPELINE","description":"d","bindings":[{"fleet":true,"version":2},{"group":"web","version":3},{"agent":"a1","version":1}]}`
	got := s.do(t, "PUT", "/v1/configs/nginx?dry_run=1&keep_bindings=1", body, `If-Match: "e1"`)
	want := `{"name":"nginx",` + body[1:len(body)-1] + `,"latest_version":3,"etag":"e2"}`
	if got.status != 200 || string(got.body) != want || got.header.Get("ETag") != `"e2"` {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	if want := (&musterv1.PutConfigRequest{IfMatch: "e1", DryRun: true, KeepBindings: true, Config: &musterv1.Config{
		Name: "nginx", Kind: musterv1.Config_PIPELINE, Description: "d",
		Bindings: []*musterv1.Binding{{Fleet: true, Version: 2}, {Group: "web", Version: 3}, {Agent: "a1", Version: 1}},
	}}); !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "PUT", "/v1/configs/nginx", body, "If-None-Match: *"); got.status != 201 || !asked.GetIfNoneMatch() {
		t.Errorf("made: %d, %v", got.status, asked)
	}
}

func TestC098BadConfigsPutNothing(t *testing.T) {
	fake := working()
	fake.configs.put = func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
		t.Errorf("put %v", r)
		return &musterv1.Config{}, nil
	}
	s := service(t, fake)
	for _, tc := range []struct{ body, code, field string }{
		{`{"kind":"pipeline"}`, "INVALID_VALUE", "kind"},
		{`{"kind":"KIND_UNSPECIFIED"}`, "INVALID_VALUE", "kind"},
		{`{"kind":1}`, "WRONG_TYPE", "kind"},
		{`{"bindings":[{"fleet":true,"version":"1"}]}`, "WRONG_TYPE", "bindings[0].version"},
		{`{"bindings":[{"fleet":true,"version":2147483648}]}`, "OUT_OF_RANGE", "bindings[0].version"},
		{`{"bindings":[{"fleet":true,"version":1.0}]}`, "WRONG_TYPE", "bindings[0].version"},
		{`{"bindings":[{"groups":["a"]}]}`, "UNKNOWN_FIELD", "bindings[0].groups"},
		{`{"bindings":{}}`, "WRONG_TYPE", "bindings"},
		{`{"latest_version":1}`, "SET_BY_SERVER", "latest_version"},
		{`{"rollout_id":"r"}`, "SET_BY_SERVER", "rollout_id"},
		{`{"counts":{}}`, "SET_BY_SERVER", "counts"},
		{`{"name":"x"}`, "IN_PATH", "name"},
	} {
		if p := s.do(t, "PUT", "/v1/configs/nginx", tc.body).want(t, 422, tc.code); p.Errors[0].Field != tc.field {
			t.Errorf("%s: field %q", tc.body, p.Errors[0].Field)
		}
	}
}

func TestConfigIsPreviewed(t *testing.T) {
	fake := working()
	var asked *musterv1.PreviewConfigRequest
	fake.configs.preview = func(r *musterv1.PreviewConfigRequest) (*musterv1.PreviewConfigResponse, error) {
		asked = r
		return &musterv1.PreviewConfigResponse{Total: 5, Fleet: 9, Changed: 2, Changes: []*musterv1.ConfigChange{{AgentId: "a1", FromVersion: 1, ToVersion: 2}, {AgentId: "a2", FromVersion: 1}}}, nil
	}
	s := service(t, fake)
	got := s.do(t, "POST", "/v1/configs/preview?page_size=2&page_token=x", `{"name":"nginx","bindings":[{"fleet":true,"version":2}]}`)
	if want := `{"total":5,"fleet":9,"changed":2,"changes":[{"agent_id":"a1","from_version":1,"to_version":2},{"agent_id":"a2","from_version":1}]}`; string(got.body) != want {
		t.Errorf("got %d %s", got.status, got.body)
	}
	want := &musterv1.PreviewConfigRequest{Config: &musterv1.Config{Name: "nginx", Bindings: []*musterv1.Binding{{Fleet: true, Version: 2}}}, PageSize: 2, PageToken: "x"}
	if !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
}

func TestDiffNamesBothVersions(t *testing.T) {
	fake := working()
	var asked *musterv1.DiffConfigRequest
	fake.configs.diff = func(r *musterv1.DiffConfigRequest) (*musterv1.DiffConfigResponse, error) {
		asked = r
		return &musterv1.DiffConfigResponse{Text: "-a\n+b\n", FileChanges: []string{"mode: 0600 -> 0644"}}, nil
	}
	s := service(t, fake)
	if got := s.do(t, "GET", "/v1/configs/nginx/diff?from=1&to=12", ""); string(got.body) != `{"text":"-a\n+b\n","file_changes":["mode: 0600 -> 0644"]}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if want := (&musterv1.DiffConfigRequest{Config: "nginx", From: 1, To: 12}); !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	for query, field := range map[string]string{
		"": "from", "?from=1": "to", "?to=1": "from", "?from=0&to=1": "from", "?from=-1&to=1": "from", "?from=1&to=2147483648": "to", "?from=01&to=1": "from",
		"?from=1&to=x": "to", "?from=1&to=+2": "to",
	} {
		if p := s.do(t, "GET", "/v1/configs/nginx/diff"+query, "").want(t, 400, "INVALID_PARAMETER"); p.Errors[0].Field != field {
			t.Errorf("%s: field %q", query, p.Errors[0].Field)
		}
	}
}

func TestConfigStatusIsShown(t *testing.T) {
	fake := working()
	status := &musterv1.ConfigStatus{Kind: musterv1.Config_PIPELINE, Name: "nginx", Version: 2, Status: musterv1.ConfigStatus_FAILED,
		RunningVersion: 1, Reason: "check failed", AgentId: "a1", WantedVersion: -1}
	const shown = `{"kind":"PIPELINE","name":"nginx","version":2,"status":"FAILED","running_version":1,"reason":"check failed","agent_id":"a1","wanted_version":-1}`
	var asked *musterv1.ListConfigStatusRequest
	fake.configs.status = func(r *musterv1.ListConfigStatusRequest) (*musterv1.ListConfigStatusResponse, error) {
		asked = r
		return &musterv1.ListConfigStatusResponse{Statuses: []*musterv1.ConfigStatus{status}}, nil
	}
	fake.configs.ofAgent = func(r *musterv1.GetAgentConfigsRequest) (*musterv1.GetAgentConfigsResponse, error) {
		return &musterv1.GetAgentConfigsResponse{Configs: []*musterv1.ConfigStatus{status}, Instance: []byte(`{"n":9007199254740993}`),
			Sources: []*musterv1.ConfigSource{{Config: r.GetAgentId() + "-base", Binding: &musterv1.Binding{Fleet: true, Version: 4}}}}, nil
	}
	s := service(t, fake)
	if got := s.do(t, "GET", "/v1/configs/nginx/status?status=FAILED,APPLYING,FAILED&page_size=9", ""); string(got.body) != `{"statuses":[`+shown+`]}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	want := &musterv1.ListConfigStatusRequest{Config: "nginx", PageSize: 9, Statuses: []musterv1.ConfigStatus_Status{musterv1.ConfigStatus_FAILED, musterv1.ConfigStatus_APPLYING}}
	if !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	s.do(t, "GET", "/v1/configs/nginx/status?status=failed", "").want(t, 400, "INVALID_PARAMETER")
	s.do(t, "GET", "/v1/configs/nginx/status?status=LOST", "").want(t, 400, "INVALID_PARAMETER")
	if got := s.do(t, "GET", "/v1/configs/nginx/status?status=UNSET", ""); got.status != 200 {
		t.Errorf("UNSET is a status: %d %s", got.status, got.body)
	}
	if got := s.do(t, "GET", "/v1/agents/a1/configs", ""); string(got.body) !=
		`{"configs":[`+shown+`],"instance":{"n":9007199254740993},"sources":[{"config":"a1-base","binding":{"fleet":true,"version":4}}]}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
