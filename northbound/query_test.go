package northbound

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC095BadPages(t *testing.T) {
	fake := working()
	fake.agents.list = func(context.Context, *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
		return nil, refused(codes.InvalidArgument, "page_token is not one of ours", violations("page_token", "is not one of ours"))
	}
	s := service(t, fake)
	for query, code := range map[string]string{
		"page_size=0":                        "INVALID_PARAMETER",
		"page_size=-1":                       "INVALID_PARAMETER",
		"page_size=abc":                      "INVALID_PARAMETER",
		"page_size=1.5":                      "INVALID_PARAMETER",
		"page_size=9223372036854775808":      "INVALID_PARAMETER",
		"page_size=":                         "INVALID_PARAMETER",
		"page_size=1&page_size=1":            "INVALID_PARAMETER",
		"page_token=a&page_token=a":          "INVALID_PARAMETER",
		"page_token=":                        "INVALID_PARAMETER",
		"page_token=%ff":                     "INVALID_PARAMETER",
		"page_token=%zz":                     "MALFORMED_QUERY",
		"page_token=a;b":                     "MALFORMED_QUERY",
		"pagesize=5":                         "UNKNOWN_PARAMETER",
		"filter=x":                           "UNKNOWN_PARAMETER",
		"%ff=x":                              "UNKNOWN_PARAMETER",
		"page_token=" + url.QueryEscape("🤷"): "INVALID_ARGUMENT",
		"page_token=" + strings.Repeat("a", 10<<10): "INVALID_ARGUMENT",
	} {
		p := s.do(t, "GET", "/v1/agents?"+query, "").want(t, 400, code)
		if code != "MALFORMED_QUERY" && len(p.Errors) != 1 {
			t.Errorf("%s: no parameter is named: %+v", query, p)
		}
	}
	if p := s.do(t, "GET", "/v1/commands?pagesize=5", "").problem(t); !strings.Contains(p.Detail, `did you mean "page_size"`) {
		t.Errorf("got %q", p.Detail)
	}
	for _, path := range []string{"/v1/agents/a?x=1", "/v1/commands/c?page_size=1", "/v1/commands/c/targets/a?x", "/v1/commands/c/targets/a/output?stream=stdin", "/v1/events?kinds=agents", "/v1/events?kinds="} {
		if got := s.do(t, "GET", path, ""); got.problem(t).Status != 400 {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	s.do(t, "POST", "/v1/commands?dry_run=1", `{}`).want(t, 400, "UNKNOWN_PARAMETER")
}

func TestListsAreFilteredByTheCoordinator(t *testing.T) {
	fake := working()
	var commands *musterv1.ListCommandsRequest
	fake.commands.list = func(_ context.Context, r *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error) {
		commands = r
		return &musterv1.ListCommandsResponse{}, nil
	}
	var targets *musterv1.ListTargetsRequest
	fake.commands.listTargets = func(_ context.Context, r *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
		targets = r
		return &musterv1.ListTargetsResponse{}, nil
	}
	s := service(t, fake)

	for query, want := range map[string]musterv1.Order{"": musterv1.Order_ORDER_UNSPECIFIED, "order=asc": musterv1.Order_ASC, "order=desc": musterv1.Order_DESC} {
		if got := s.do(t, "GET", "/v1/commands?"+query, ""); got.status != 200 || commands.GetOrder() != want {
			t.Errorf("%q: %d, asked for %v", query, got.status, commands)
		}
	}
	filter := `state == "DONE" && labels["team"] == "é&+" && "web-1" in agents`
	if got := s.do(t, "GET", "/v1/commands?order=asc&page_size=7&page_token=x&filter="+url.QueryEscape(filter), ""); got.status != 200 ||
		commands.GetFilter() != filter || commands.GetOrder() != musterv1.Order_ASC || commands.GetPageSize() != 7 || commands.GetPageToken() != "x" {
		t.Errorf("%d, asked for %v", got.status, commands)
	}
	for query, want := range map[string][]musterv1.Target_State{
		"":                              nil,
		"state=FAILED":                  {musterv1.Target_FAILED},
		"state=LOST,FAILED":             {musterv1.Target_LOST, musterv1.Target_FAILED},
		"state=LOST%2CLOST,QUEUED,LOST": {musterv1.Target_LOST, musterv1.Target_QUEUED},
	} {
		if got := s.do(t, "GET", "/v1/commands/c/targets?"+query, ""); got.status != 200 || !slices.Equal(targets.GetStates(), want) {
			t.Errorf("%q: %d, asked for %v", query, got.status, targets)
		}
	}
}

func TestC095BadFiltersAndOrders(t *testing.T) {
	fake := &coordinator{} // a call would be 500
	s := service(t, fake)
	long := url.QueryEscape(strings.Repeat("state,", 2000))
	for _, target := range []string{
		"/v1/commands?order=", "/v1/commands?order=ASC", "/v1/commands?order=up", "/v1/commands?order=asc&order=asc", "/v1/commands?order=asc,desc", "/v1/commands?order=1",
		"/v1/commands?filter=", "/v1/commands?filter=a&filter=b", "/v1/commands?filter=%ff", "/v1/commands?page_size=0", "/v1/commands?page_size=9223372036854775808",
		"/v1/commands/c/targets?state=", "/v1/commands/c/targets?state=failed", "/v1/commands/c/targets?state=FAILED,", "/v1/commands/c/targets?state=FAILED&state=LOST",
		"/v1/commands/c/targets?state=STATE_UNSPECIFIED", "/v1/commands/c/targets?state=6", "/v1/commands/c/targets?state=FAILED,%20LOST", "/v1/commands/c/targets?state=" + long,
		"/v1/keys?state=", "/v1/keys?state=pending", "/v1/keys?state=PENDING,REVOKED", "/v1/keys?page_size=-1", "/v1/keys?state=STATE_UNSPECIFIED",
	} {
		if p := s.do(t, "GET", target, "").want(t, 400, "INVALID_PARAMETER"); len(p.Errors) != 1 || !strings.Contains(target, "?"+p.Errors[0].Field+"=") {
			t.Errorf("%s: %+v", target, p)
		}
	}
	for _, target := range []string{
		"/v1/agents?order=asc", "/v1/agents?filter=true", "/v1/commands?state=DONE", "/v1/commands/c?filter=true", "/v1/commands/c/targets?order=asc",
		"/v1/commands/c/targets?filter=true", "/v1/commands/c/targets/a?state=LOST", "/v1/keys?filter=true", "/v1/keys/k?state=PENDING",
	} {
		s.do(t, "GET", target, "").want(t, 400, "UNKNOWN_PARAMETER")
	}

	// What only the coordinator can judge is a bad parameter, not a bad body.
	fake.commands.list = func(_ context.Context, r *musterv1.ListCommandsRequest) (*musterv1.ListCommandsResponse, error) {
		if r.GetPageToken() != "" {
			return nil, refused(codes.InvalidArgument, "bad", violations("page_token", "not a token of this list"))
		}
		return nil, refused(codes.InvalidArgument, "bad", violations("filter", "not a CEL expression"))
	}
	for _, filter := range []string{"(", "1", "nobody == 1", "true;drop", "\x00", strings.Repeat("(", 10<<10), "🤷"} {
		p := s.do(t, "GET", "/v1/commands?filter="+url.QueryEscape(filter), "").want(t, 400, "INVALID_ARGUMENT")
		if len(p.Errors) != 1 || p.Errors[0].Field != "filter" {
			t.Errorf("%.20q: %+v", filter, p)
		}
	}
	p := s.do(t, "GET", "/v1/commands?filter=true&page_token=of-another-filter", "").want(t, 400, "INVALID_ARGUMENT")
	if len(p.Errors) != 1 || p.Errors[0].Field != "page_token" {
		t.Errorf("%+v", p)
	}
}

func TestWaitIsHandedOn(t *testing.T) {
	fake := working()
	var wait, left time.Duration
	fake.commands.get = func(ctx context.Context, r *musterv1.GetCommandRequest) (*musterv1.Command, error) {
		deadline, _ := ctx.Deadline()
		wait, left = r.GetWait().AsDuration(), time.Until(deadline)
		return &musterv1.Command{Id: r.GetId()}, nil
	}
	s := service(t, fake)
	for query, want := range map[string]time.Duration{"": 0, "?wait=0s": 0, "?wait=250ms": 250 * time.Millisecond, "?wait=30s": 30 * time.Second, "?wait=1d": time.Minute} {
		if got := s.do(t, "GET", "/v1/commands/c"+query, ""); got.status != 200 || wait != want || left < want+20*time.Second {
			t.Errorf("%s: %d, waits %v with %v left", query, got.status, wait, left)
		}
	}
	for _, bad := range []string{"30", "-1s", "soon", ""} {
		s.do(t, "GET", "/v1/commands/c?wait="+bad, "").want(t, 400, "INVALID_PARAMETER")
	}
}
