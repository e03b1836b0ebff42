package northbound

import (
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// notInRollout are the fields of a ConfigRollout that a request must not bring.
var notInRollout = notInBody{
	"muster.v1.ConfigRollout.id":           setByServer,
	"muster.v1.ConfigRollout.config":       inPath,
	"muster.v1.ConfigRollout.state":        setByServer,
	"muster.v1.ConfigRollout.state_reason": setByServer,
	"muster.v1.ConfigRollout.counts":       setByServer,
	"muster.v1.ConfigRollout.create_time":  setByServer,
	"muster.v1.ConfigRollout.end_time":     setByServer,
}

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
	ctx, wait, done, err := s.waiting(c)
	if err != nil {
		return err
	}
	defer done()
	rollout, err := s.rollouts.GetConfigRollout(ctx, &musterv1.GetConfigRolloutRequest{Id: c.Param("id"), Wait: wait})
	if err != nil {
		return whyEnded(ctx, err)
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
