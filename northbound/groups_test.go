package northbound

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestGroupsAreListedAndShown(t *testing.T) {
	fake := working()
	group := &musterv1.Group{Name: "web", Where: `tags["role"] == "web"`, Agents: []string{"a1"}, Size: 3, Etag: "e7",
		CreateTime: timestamppb.New(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC))}
	var listed *musterv1.ListGroupsRequest
	fake.groups.list = func(r *musterv1.ListGroupsRequest) (*musterv1.ListGroupsResponse, error) {
		listed = r
		return &musterv1.ListGroupsResponse{Groups: []*musterv1.Group{group}, NextPageToken: "n"}, nil
	}
	fake.groups.get = func(r *musterv1.GetGroupRequest) (*musterv1.Group, error) {
		if r.GetName() != "web" {
			return nil, refused(codes.NotFound, "group is not known", &errdetails.ErrorInfo{Reason: "NOT_FOUND"})
		}
		return group, nil
	}
	var members *musterv1.ListGroupAgentsRequest
	fake.groups.members = func(r *musterv1.ListGroupAgentsRequest) (*musterv1.ListGroupAgentsResponse, error) {
		members = r
		return &musterv1.ListGroupAgentsResponse{AgentIds: []string{"a1", "a2"}}, nil
	}
	s := service(t, fake)
	const shown = `{"name":"web","where":"tags[\"role\"] == \"web\"","agents":["a1"],"size":3,"create_time":"2026-05-01T00:00:00Z","etag":"e7"}`
	if got := s.do(t, "GET", "/v1/groups?page_size=5&page_token=t", ""); string(got.body) != `{"groups":[`+shown+`],"next_page_token":"n"}` {
		t.Errorf("got %s", got.body)
	}
	if want := (&musterv1.ListGroupsRequest{PageSize: 5, PageToken: "t"}); !proto.Equal(listed, want) {
		t.Errorf("asked for %v", listed)
	}
	if got := s.do(t, "GET", "/v1/groups/web", ""); got.status != 200 || string(got.body) != shown || got.header.Get("ETag") != `"e7"` {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	if got := s.do(t, "GET", "/v1/groups/db", ""); got.header.Get("ETag") != "" {
		t.Errorf("an ETag of nothing: %v", got.header)
	}
	if got := s.do(t, "GET", "/v1/groups/web/agents?page_size=2&page_token=a0", ""); string(got.body) != `{"agent_ids":["a1","a2"]}` {
		t.Errorf("got %s", got.body)
	}
	if want := (&musterv1.ListGroupAgentsRequest{Name: "web", PageSize: 2, PageToken: "a0"}); !proto.Equal(members, want) {
		t.Errorf("asked for %v", members)
	}
}

func TestGroupIsPut(t *testing.T) {
	fake := working()
	var asked *musterv1.PutGroupRequest
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
		asked = r
		return &musterv1.Group{Name: r.GetGroup().GetName(), Etag: "e2"}, nil
	}
	s := service(t, fake)
	const body = `{"description":"d","where":"true","agents":["a1","a2"]}`
	group := &musterv1.Group{Name: "web", Description: "d", Where: "true", Agents: []string{"a1", "a2"}}
	for _, tc := range []struct {
		query, header string
		status        int
		want          *musterv1.PutGroupRequest
	}{
		{"", "", 200, &musterv1.PutGroupRequest{Group: group}},
		{"", `If-Match: "e1"`, 200, &musterv1.PutGroupRequest{Group: group, IfMatch: "e1"}},
		{"", "If-Match: *", 200, &musterv1.PutGroupRequest{Group: group, IfMatch: "*"}},
		{"", "If-None-Match: *", 201, &musterv1.PutGroupRequest{Group: group, IfNoneMatch: true}},
		{"?dry_run=true", "If-None-Match: *", 200, &musterv1.PutGroupRequest{Group: group, IfNoneMatch: true, DryRun: true}},
		{"?dry_run=0", "", 200, &musterv1.PutGroupRequest{Group: group}},
	} {
		got := s.do(t, "PUT", "/v1/groups/web"+tc.query, body, tc.header)
		if got.status != tc.status || got.header.Get("ETag") != `"e2"` || string(got.body) != `{"name":"web","etag":"e2"}` {
			t.Errorf("%s %s: %d %v %s", tc.query, tc.header, got.status, got.header, got.body)
		}
		if !proto.Equal(asked, tc.want) {
			t.Errorf("%s %s: asked for %v", tc.query, tc.header, asked)
		}
	}
}

func TestC098BadGroupsPutNothing(t *testing.T) {
	fake := working()
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
		t.Errorf("put %v", r)
		return &musterv1.Group{}, nil
	}
	s := service(t, fake)
	for body, code := range map[string]string{
		`{"name":"web"}`: "IN_PATH", `{"size":1}`: "SET_BY_SERVER", `{"etag":"x"}`: "SET_BY_SERVER", `{"members":["a"]}`: "UNKNOWN_FIELD",
		`{"agents":"a1"}`: "WRONG_TYPE", `{"agents":[null]}`: "NULL", `{"where":true}`: "WRONG_TYPE", `{"where":"a","where":"b"}`: "DUPLICATE_FIELD",
		`{"create_time":"2026-05-01T00:00:00Z"}`: "SET_BY_SERVER",
	} {
		s.do(t, "PUT", "/v1/groups/web", body).want(t, 422, code)
	}
	s.do(t, "PUT", "/v1/groups/web", "").want(t, 400, "EMPTY_BODY")
	s.do(t, "PUT", "/v1/groups/web?dry_run=yes", `{}`).want(t, 400, "INVALID_PARAMETER")
	s.do(t, "PUT", "/v1/groups/web?dryrun=1", `{}`).want(t, 400, "UNKNOWN_PARAMETER")
	s.do(t, "PUT", "/v1/groups/web", `{}`, "Content-Type: text/plain").want(t, 415, "UNSUPPORTED_MEDIA_TYPE")
}

func TestGroupIsPreviewed(t *testing.T) {
	fake := working()
	var asked *musterv1.PreviewGroupRequest
	fake.groups.preview = func(r *musterv1.PreviewGroupRequest) (*musterv1.PreviewGroupResponse, error) {
		asked = r
		return &musterv1.PreviewGroupResponse{Total: 2, Fleet: 9, AgentIds: []string{"a1", "a2"}, Joining: []string{"a2"}, Leaving: 4}, nil
	}
	s := service(t, fake)
	got := s.do(t, "POST", "/v1/groups/preview?page_size=2", `{"name":"web","where":"true"}`)
	if got.status != 200 || string(got.body) != `{"total":2,"fleet":9,"agent_ids":["a1","a2"],"joining":["a2"],"leaving":4,"leaving_ids":[],"configs":[]}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if want := (&musterv1.PreviewGroupRequest{Group: &musterv1.Group{Name: "web", Where: "true"}, PageSize: 2}); !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "PUT", "/v1/groups/preview", `{}`); got.status != 200 {
		t.Errorf("a group with the name preview: %d", got.status)
	}
}

// What the coordinator says of a condition, a name and a bound group is told
// with a status of its own.
func TestGroupRefusals(t *testing.T) {
	fake := working()
	var refusal error
	fake.groups.put = func(*musterv1.PutGroupRequest) (*musterv1.Group, error) { return nil, refusal }
	fake.groups.remove = func(*musterv1.DeleteGroupRequest) (*musterv1.DeleteGroupResponse, error) { return nil, refusal }
	s := service(t, fake)
	for _, tc := range []struct {
		err         error
		put, remove int
		code, field string
	}{
		{refused(codes.FailedPrecondition, "it has changed", &errdetails.ErrorInfo{Reason: "ETAG_MISMATCH"}), 412, 412, "ETAG_MISMATCH", ""},
		{refused(codes.FailedPrecondition, "configs are bound to it", &errdetails.ErrorInfo{Reason: "GROUP_BOUND"}), 409, 409, "GROUP_BOUND", ""},
		{refused(codes.ResourceExhausted, "that is the limit", &errdetails.ErrorInfo{Reason: "TOO_MANY_GROUPS"}), 409, 409, "TOO_MANY_GROUPS", ""},
		{refused(codes.Aborted, "at the same time", &errdetails.ErrorInfo{Reason: "CONFLICT"}), 409, 409, "CONFLICT", ""},
		{refused(codes.InvalidArgument, "bad", violations("group.where", "not CEL")), 422, 400, "INVALID_ARGUMENT", "where"},
		{refused(codes.InvalidArgument, "bad", violations("group.name", "not a name")), 400, 400, "INVALID_ARGUMENT", "name"},
		{refused(codes.NotFound, "not known", &errdetails.ErrorInfo{Reason: "NOT_FOUND"}), 404, 404, "NOT_FOUND", ""},
	} {
		refusal = tc.err
		p := s.do(t, "PUT", "/v1/groups/web", `{}`).want(t, tc.put, tc.code)
		if tc.field != "" && p.Errors[0].Field != tc.field {
			t.Errorf("%v: field %q", tc.err, p.Errors[0].Field)
		}
		s.do(t, "DELETE", "/v1/groups/web", "").want(t, tc.remove, tc.code)
	}
}

func TestDeletesAnswer204(t *testing.T) {
	fake := working()
	var deleted []string
	fake.groups.remove = func(r *musterv1.DeleteGroupRequest) (*musterv1.DeleteGroupResponse, error) {
		deleted = append(deleted, "group "+r.GetName()+" "+r.GetIfMatch())
		return &musterv1.DeleteGroupResponse{}, nil
	}
	fake.configs.remove = func(r *musterv1.DeleteConfigRequest) (*musterv1.DeleteConfigResponse, error) {
		deleted = append(deleted, "config "+r.GetName()+" "+r.GetIfMatch())
		return &musterv1.DeleteConfigResponse{}, nil
	}
	fake.agents.forget = func(r *musterv1.DeleteAgentRequest) (*musterv1.DeleteAgentResponse, error) {
		deleted = append(deleted, "agent "+r.GetId()+" ")
		return &musterv1.DeleteAgentResponse{}, nil
	}
	s := service(t, fake)
	for i, tc := range []struct{ path, header, want string }{
		{"/v1/groups/web", "", "group web "}, {"/v1/groups/web", `If-Match: "e1"`, "group web e1"},
		{"/v1/configs/nginx", "", "config nginx "}, {"/v1/configs/nginx", "If-Match: *", "config nginx *"},
		{"/v1/agents/a%2Fb", "", "agent a/b "},
	} {
		got := s.do(t, "DELETE", tc.path, "", tc.header)
		if got.status != 204 || len(got.body) > 0 || len(deleted) != i+1 || deleted[i] != tc.want {
			t.Errorf("%s %s: %d %s, deleted %q", tc.path, tc.header, got.status, got.body, deleted)
		}
	}
	s.do(t, "DELETE", "/v1/groups/web", "", "If-None-Match: *").want(t, 400, "INVALID_CONDITION")
	s.do(t, "DELETE", "/v1/configs/nginx?force=1", "").want(t, 400, "UNKNOWN_PARAMETER")
}
