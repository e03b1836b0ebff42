package northbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func refused(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func violations(fieldsAndMessages ...string) *errdetails.BadRequest {
	b := &errdetails.BadRequest{}
	for i := 0; i < len(fieldsAndMessages); i += 2 {
		b.FieldViolations = append(b.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: fieldsAndMessages[i], Description: fieldsAndMessages[i+1]})
	}
	return b
}

func TestStatusesAreAnsweredByOneTable(t *testing.T) {
	var err error
	fake := &coordinator{}
	fake.agents.get = func(context.Context, *musterv1.GetAgentRequest) (*musterv1.Agent, error) { return nil, err }
	s := service(t, fake)
	for _, tc := range []struct {
		err        error
		status     int
		code       string
		header     string
		wantHeader string
	}{
		{refused(codes.InvalidArgument, "bad"), 400, "INVALID_ARGUMENT", "", ""},
		{refused(codes.InvalidArgument, "bad", violations("page_token", "is not one of ours")), 400, "INVALID_ARGUMENT", "", ""},
		{refused(codes.OutOfRange, "bad"), 400, "OUT_OF_RANGE", "", ""},
		{refused(codes.Unauthenticated, "who"), 401, "UNAUTHENTICATED", "WWW-Authenticate", `Bearer realm="muster"`},
		{refused(codes.PermissionDenied, "no"), 403, "PERMISSION_DENIED", "", ""},
		{refused(codes.NotFound, `agent "a"`), 404, "NOT_FOUND", "", ""},
		{refused(codes.NotFound, `agent "a"`, &errdetails.ErrorInfo{Reason: "AGENT_NOT_FOUND"}), 404, "AGENT_NOT_FOUND", "", ""},
		{refused(codes.AlreadyExists, "twice"), 409, "ALREADY_EXISTS", "", ""},
		{refused(codes.Aborted, "lost"), 409, "CONFLICT", "", ""},
		{refused(codes.FailedPrecondition, "not now"), 409, "FAILED_PRECONDITION", "", ""},
		{refused(codes.ResourceExhausted, "full"), 429, "RESOURCE_EXHAUSTED", "Retry-After", "1"},
		{refused(codes.ResourceExhausted, "full", &errdetails.RetryInfo{RetryDelay: durationpb.New(2500 * time.Millisecond)}), 429, "RESOURCE_EXHAUSTED", "Retry-After", "3"},
		{refused(codes.ResourceExhausted, "no space", &errdetails.ErrorInfo{Reason: "DISK_FULL"}), 507, "DISK_FULL", "Retry-After", ""},
		{refused(codes.Unavailable, "dial unix /secret"), 503, "UNAVAILABLE", "Retry-After", "1"},
		{refused(codes.Unavailable, "busy", &errdetails.ErrorInfo{Reason: "BUSY"}), 503, "BUSY", "Retry-After", "1"},
		{refused(codes.Canceled, "stopping"), 503, "CANCELLED", "Retry-After", "1"},
		{refused(codes.DeadlineExceeded, "late"), 504, "DEADLINE_EXCEEDED", "", ""},
		{refused(codes.Internal, "secret"), 500, "INTERNAL", "", ""},
		{refused(codes.DataLoss, "secret"), 500, "INTERNAL", "", ""},
		{errors.New("secret"), 500, "INTERNAL", "", ""},
	} {
		err = tc.err
		got := s.do(t, "GET", "/v1/agents/a", "")
		p := got.want(t, tc.status, tc.code)
		if got.header.Get(tc.header) != tc.wantHeader {
			t.Errorf("%v: %s is %q, want %q", tc.err, tc.header, got.header.Get(tc.header), tc.wantHeader)
		}
		if strings.Contains(string(got.body), "secret") {
			t.Errorf("%v: the answer tells %s", tc.err, got.body)
		}
		if p.Type != "about:blank" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%v: %s with %v", tc.err, got.body, got.header)
		}
	}
}

func TestViolationsNameFieldsOfTheBody(t *testing.T) {
	fake := &coordinator{}
	fake.commands.create = func(context.Context, *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
		return nil, refused(codes.InvalidArgument, "2 fields", violations("command.target.agents[1]", "no such agent", "type", "is missing"))
	}
	got := service(t, fake).do(t, "POST", "/v1/commands", `{}`)
	p := got.want(t, 422, "INVALID_ARGUMENT")
	want := []fieldProblem{{"target.agents[1]", "no such agent"}, {"type", "is missing"}}
	if fmt.Sprint(p.Errors) != fmt.Sprint(want) || p.Title != "Unprocessable Entity" {
		t.Errorf("got %s", got.body)
	}
	var keys map[string]any
	if err := json.Unmarshal(got.body, &keys); err != nil || len(keys) != 6 {
		t.Errorf("got %s, %v", got.body, err)
	}
}

func TestPanicIsOneAnswer(t *testing.T) {
	s := service(t, &coordinator{})
	s.agents = nil // any programmer's mistake
	for range 2 {
		s.do(t, "GET", "/v1/agents/a", "").want(t, 500, "INTERNAL")
	}
	if got := s.do(t, "GET", "/healthz", ""); got.status != 200 {
		t.Errorf("after a panic: %d", got.status)
	}
}
