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

func TestKeysAreListedAndShown(t *testing.T) {
	fake := working()
	key := &musterv1.Key{Id: "00ff", PublicKey: `A<b&"c`, State: musterv1.Key_PENDING, AgentId: "web-1", Address: "192.0.2.1:5000",
		FirstSeen: timestamppb.New(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC))}
	var asked *musterv1.ListKeysRequest
	fake.keys.list = func(r *musterv1.ListKeysRequest) (*musterv1.ListKeysResponse, error) {
		asked = r
		return &musterv1.ListKeysResponse{Keys: []*musterv1.Key{key}, NextPageToken: "n"}, nil
	}
	fake.keys.get = func(r *musterv1.GetKeyRequest) (*musterv1.Key, error) {
		if r.GetId() != "00ff" {
			return nil, refused(codes.NotFound, "key is not known")
		}
		return key, nil
	}
	s := service(t, fake)
	const shown = `{"id":"00ff","public_key":"A<b&\"c","state":"PENDING","agent_id":"web-1","address":"192.0.2.1:5000","first_seen":"2026-05-01T00:00:00Z"}`
	got := s.do(t, "GET", "/v1/keys?state=PENDING&page_size=5&page_token=t", "")
	if want := (&musterv1.ListKeysRequest{State: musterv1.Key_PENDING, PageSize: 5, PageToken: "t"}); got.status != 200 || !proto.Equal(asked, want) {
		t.Errorf("%d, asked for %v", got.status, asked)
	}
	if string(got.body) != `{"keys":[`+shown+`],"next_page_token":"n"}` {
		t.Errorf("got %s", got.body)
	}
	if s.do(t, "GET", "/v1/keys", ""); asked.GetState() != 0 || asked.GetPageSize() != 0 {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "GET", "/v1/keys/00ff", ""); got.status != 200 || string(got.body) != shown {
		t.Errorf("got %d %s", got.status, got.body)
	}
	s.do(t, "GET", "/v1/keys/beef", "").want(t, 404, "NOT_FOUND")
}

func TestKeysAreApprovedAndRevoked(t *testing.T) {
	fake := working()
	s := service(t, fake)
	for body, want := range map[string]string{
		"":                     `{"id":"00ff","state":"APPROVED"}`, // under the id that the key asks for
		"{}":                   `{"id":"00ff","state":"APPROVED"}`,
		`{"agent_id":"web-1"}`: `{"id":"00ff","state":"APPROVED","agent_id":"web-1"}`,
	} {
		if got := s.do(t, "POST", "/v1/keys/00ff/approve", body); got.status != 200 || string(got.body) != want {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	for _, body := range []string{"", "{}"} {
		if got := s.do(t, "POST", "/v1/keys/00ff/revoke", body); got.status != 200 || string(got.body) != `{"id":"00ff","state":"REVOKED"}` {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}

	var refusal error
	fake.keys.approve = func(*musterv1.ApproveKeyRequest) (*musterv1.Key, error) { return nil, refusal }
	fake.keys.revoke = func(*musterv1.RevokeKeyRequest) (*musterv1.Key, error) { return nil, refusal }
	for _, tc := range []struct {
		err    error
		status int
		code   string
	}{
		{refused(codes.AlreadyExists, "agent has a key", &errdetails.ErrorInfo{Reason: "AGENT_HAS_KEY"}), 409, "AGENT_HAS_KEY"},
		{refused(codes.FailedPrecondition, "the key is bound", &errdetails.ErrorInfo{Reason: "KEY_BOUND"}), 409, "KEY_BOUND"},
		{refused(codes.InvalidArgument, "no id", violations("agent_id", "is not an agent id")), 422, "INVALID_ARGUMENT"},
		{refused(codes.NotFound, "key is not known"), 404, "NOT_FOUND"},
		{refused(codes.PermissionDenied, "not you"), 403, "PERMISSION_DENIED"},
	} {
		refusal = tc.err
		for _, word := range []string{"approve", "revoke"} {
			s.do(t, "POST", "/v1/keys/00ff/"+word, "").want(t, tc.status, tc.code)
		}
	}
}
