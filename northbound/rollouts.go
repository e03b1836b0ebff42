package northbound

import (
	"context"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var (
	// notInRollout are the fields of a ConfigRollout that a request must not bring.
	notInRollout = notInBody{
		"muster.v1.ConfigRollout.id":           setByServer,
		"muster.v1.ConfigRollout.config":       inPath,
		"muster.v1.ConfigRollout.state":        setByServer,
		"muster.v1.ConfigRollout.state_reason": setByServer,
		"muster.v1.ConfigRollout.counts":       setByServer,
		"muster.v1.ConfigRollout.create_time":  setByServer,
		"muster.v1.ConfigRollout.end_time":     setByServer,
	}
	notInRolloutControl = notInBody{"muster.v1.ControlConfigRolloutRequest.id": inPath}
)

// createRollout starts one; with dry_run it says how many it would reach.
func (s *Server) createRollout(c echo.Context) error {
	q, err := readQuery(c, "dry_run")
	if err != nil {
		return err
	}
	request := &musterv1.CreateConfigRolloutRequest{Rollout: &musterv1.ConfigRollout{}}
	if request.DryRun, err = q.flag("dry_run"); err != nil {
		return err
	}
	if request.IdempotencyKey, err = idempotencyKey(c); err != nil {
		return err
	}
	if _, err := s.readMessage(c, request.Rollout, notInRollout); err != nil {
		return err
	}
	request.Rollout.Config = c.Param("name")
	ctx, cancel := call(c, 0)
	defer cancel()
	rollout, err := s.rollouts.CreateConfigRollout(ctx, request)
	if err != nil {
		return inBody(err, "rollout", "config")
	}
	if request.DryRun {
		return answer(c, http.StatusOK, rollout)
	}
	c.Response().Header().Set("Location", "/v1/rollouts/"+url.PathEscape(rollout.GetId()))
	return answer(c, http.StatusAccepted, rollout)
}

// listRollouts is of one config where the path names it, or of all.
func (s *Server) listRollouts(c echo.Context) error {
	p, err := readPage(c, "order")
	if err != nil {
		return err
	}
	order, err := p.order()
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListConfigRolloutsRequest{Config: c.Param("name"), PageSize: p.size, PageToken: p.token, Order: order}
	page, err := s.rollouts.ListConfigRollouts(ctx, request, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getRollout(c echo.Context) error {
	q, err := readQuery(c, "wait")
	if err != nil {
		return err
	}
	wait, err := q.wait()
	if err != nil {
		return err
	}
	ctx, cancel := call(c, wait)
	defer cancel()
	request := &musterv1.GetConfigRolloutRequest{Id: c.Param("id")}
	if wait > 0 {
		request.Wait = durationpb.New(wait)
		var done func()
		ctx, done = s.untilStop(ctx)
		defer done()
	}
	rollout, err := s.rollouts.GetConfigRollout(ctx, request)
	if err != nil {
		if cause := context.Cause(ctx); cause == errStopping {
			return cause
		}
		return err
	}
	return answer(c, http.StatusOK, rollout)
}

func (s *Server) listRolloutTargets(c echo.Context) error {
	p, err := readPage(c, "state")
	if err != nil {
		return err
	}
	states, err := valuesOf[musterv1.RolloutTarget_State](p.query, "state")
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListRolloutTargetsRequest{Id: c.Param("id"), PageSize: p.size, PageToken: p.token, States: states}
	page, err := s.rollouts.ListRolloutTargets(ctx, request, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

// steering is one of the calls by which an operator steers a rollout.
type steering func(context.Context, *musterv1.ControlConfigRolloutRequest, ...grpc.CallOption) (*musterv1.ConfigRollout, error)

// controlRollout answers with the rollout as it is once the decision holds.
func (s *Server) controlRollout(decide steering) echo.HandlerFunc {
	return func(c echo.Context) error {
		if _, err := readQuery(c); err != nil {
			return err
		}
		request := &musterv1.ControlConfigRolloutRequest{}
		if _, err := s.readOptional(c, request, notInRolloutControl); err != nil {
			return err
		}
		request.Id = c.Param("id")
		ctx, cancel := call(c, 0)
		defer cancel()
		rollout, err := decide(ctx, request)
		if err != nil {
			return inBody(err, "")
		}
		return answer(c, http.StatusOK, rollout)
	}
}
