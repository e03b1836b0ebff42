package northbound

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC099RolloutIsStartedOnce(t *testing.T) {
	fake := working()
	var asked *musterv1.CreateConfigRolloutRequest
	fake.rollouts.create = func(r *musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
		asked = r
		made := proto.CloneOf(r.GetRollout())
		made.Id, made.State, made.Counts = "01R", musterv1.ConfigRollout_RUNNING, &musterv1.RolloutCounts{Total: 9, Waiting: 9}
		return made, nil
	}
	s := service(t, fake)
	const body = `{"version":3,"groups":["web"],"plan":{"canary":1,"batch":"10%","max_failures":0,"pause_between":"1m30s"},"keep_on_halt":true,"note":"why"}`
	got := s.do(t, "POST", "/v1/configs/nginx/rollouts", body, "Idempotency-Key: k")
	want := `{"id":"01R","config":"nginx","version":3,"groups":["web"],"plan":{"canary":1,"batch":"10%","max_failures":0,"pause_between":"1m30s"},"keep_on_halt":true,` +
		`"state":"RUNNING","counts":{"total":9,"waiting":9},"note":"why"}`
	if got.status != 202 || got.header.Get("Location") != "/v1/rollouts/01R" || string(got.body) != want {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	if want := (&musterv1.CreateConfigRolloutRequest{IdempotencyKey: "k", Rollout: &musterv1.ConfigRollout{
		Config: "nginx", Version: 3, Groups: []string{"web"}, KeepOnHalt: true, Note: "why",
		Plan: &musterv1.Rollout{Canary: "1", Batch: "10%", MaxFailures: "0", PauseBetween: durationpb.New(90 * time.Second)},
	}}); !proto.Equal(asked, want) {
		t.Errorf("asked for %v", asked)
	}
	if got := s.do(t, "POST", "/v1/configs/nginx/rollouts?dry_run=true", `{"version":3}`); got.status != 200 || got.header.Get("Location") != "" || !asked.GetDryRun() {
		t.Errorf("dry run: %d %v, asked for %v", got.status, got.header, asked)
	}

	asked = nil
	for body, code := range map[string]string{
		`{"config":"x"}`: "IN_PATH", `{"id":"x"}`: "SET_BY_SERVER", `{"state":"DONE"}`: "SET_BY_SERVER", `{"counts":{}}`: "SET_BY_SERVER", `{"version":"3"}`: "WRONG_TYPE",
		`{"plan":{"canary":1.5}}`: "WRONG_TYPE", `{"plan":{"pause":"1s"}}`: "UNKNOWN_FIELD", `{"groups":"web"}`: "WRONG_TYPE", `{"keep_on_halt":null}`: "NULL",
	} {
		s.do(t, "POST", "/v1/configs/nginx/rollouts", body).want(t, 422, code)
	}
	s.do(t, "POST", "/v1/configs/nginx/rollouts", "").want(t, 400, "EMPTY_BODY")
	s.do(t, "POST", "/v1/configs/nginx/rollouts", `{}`, "Idempotency-Key: \x7f").want(t, 400, "INVALID_IDEMPOTENCY_KEY")
	if asked != nil {
		t.Errorf("asked for %v", asked)
	}
}

func TestRolloutsAreListed(t *testing.T) {
	fake := working()
	var asked *musterv1.ListConfigRolloutsRequest
	fake.rollouts.list = func(r *musterv1.ListConfigRolloutsRequest) (*musterv1.ListConfigRolloutsResponse, error) {
		asked = r
		return &musterv1.ListConfigRolloutsResponse{Rollouts: []*musterv1.ConfigRollout{{Id: "01R", State: musterv1.ConfigRollout_ROLLED_BACK}}}, nil
	}
	var targets *musterv1.ListRolloutTargetsRequest
	fake.rollouts.targets = func(r *musterv1.ListRolloutTargetsRequest) (*musterv1.ListRolloutTargetsResponse, error) {
		targets = r
		return &musterv1.ListRolloutTargetsResponse{Targets: []*musterv1.RolloutTarget{{AgentId: "a1", State: musterv1.RolloutTarget_FAILED, PreviousVersion: 2, Reason: "r", RolledBack: true}}}, nil
	}
	s := service(t, fake)
	for path, want := range map[string]*musterv1.ListConfigRolloutsRequest{
		"/v1/rollouts":               {},
		"/v1/rollouts?order=desc":    {Order: musterv1.Order_DESC},
		"/v1/configs/nginx/rollouts": {Config: "nginx"},
		"/v1/configs/nginx/rollouts?order=asc&page_size=3&page_token=t": {Config: "nginx", Order: musterv1.Order_ASC, PageSize: 3, PageToken: "t"},
	} {
		if got := s.do(t, "GET", path, ""); string(got.body) != `{"rollouts":[{"id":"01R","state":"ROLLED_BACK"}]}` || !proto.Equal(asked, want) {
			t.Errorf("%s: %s, asked for %v", path, got.body, asked)
		}
	}
	got := s.do(t, "GET", "/v1/rollouts/01R/targets?state=FAILED,VANISHED&page_size=3", "")
	if string(got.body) != `{"targets":[{"agent_id":"a1","state":"FAILED","previous_version":2,"reason":"r","rolled_back":true}]}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	want := &musterv1.ListRolloutTargetsRequest{Id: "01R", PageSize: 3, States: []musterv1.RolloutTarget_State{musterv1.RolloutTarget_FAILED, musterv1.RolloutTarget_VANISHED}}
	if !proto.Equal(targets, want) {
		t.Errorf("asked for %v", targets)
	}
	s.do(t, "GET", "/v1/rollouts/01R/targets?state=DONE", "").want(t, 400, "INVALID_PARAMETER")
}

func TestRolloutIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := working()
		fake.rollouts.get = func(ctx context.Context, r *musterv1.GetConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
			select {
			case <-time.After(r.GetWait().AsDuration()):
				return &musterv1.ConfigRollout{Id: r.GetId(), State: musterv1.ConfigRollout_RUNNING}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		n := serve(t, fake)
		start := time.Now()
		if got := n.do(t, "GET", "/v1/rollouts/01R?wait=45s", ""); got.status != 200 || time.Since(start) != 45*time.Second {
			t.Errorf("%d after %v", got.status, time.Since(start))
		}
		start = time.Now()
		time.AfterFunc(time.Second, n.stop)
		n.do(t, "GET", "/v1/rollouts/01R?wait=45s", "").want(t, 503, "STOPPING")
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the stop waited %v", took)
		}
	})
}

func TestRolloutIsSteered(t *testing.T) {
	fake := working()
	var asked string
	var refusal error
	fake.rollouts.control = func(word string, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
		asked = fmt.Sprintf("%s %s %q", word, r.GetId(), r.GetReason())
		return &musterv1.ConfigRollout{Id: r.GetId()}, refusal
	}
	s := service(t, fake)
	for _, word := range []string{"pause", "resume", "abort"} {
		path := "/v1/rollouts/01R/" + word
		for body, want := range map[string]string{"": word + ` 01R ""`, "{}": word + ` 01R ""`, `{"reason":"too hot"}`: word + ` 01R "too hot"`} {
			if got := s.do(t, "POST", path, body); got.status != 200 || asked != want {
				t.Errorf("%s with %q: %d, asked for %s", word, body, got.status, asked)
			}
		}
		asked = ""
		s.do(t, "POST", path, `{"id":"x"}`).want(t, 422, "IN_PATH")
		s.do(t, "POST", path, `{"why":"x"}`).want(t, 422, "UNKNOWN_FIELD")
		if asked != "" {
			t.Errorf("asked for %s", asked)
		}
		refusal = refused(codes.FailedPrecondition, "it has ended", &errdetails.ErrorInfo{Reason: "ROLLOUT_ENDED"})
		s.do(t, "POST", path, "").want(t, 409, "ROLLOUT_ENDED")
		refusal = nil
	}
}
