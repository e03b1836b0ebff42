package northbound

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// notInCommand are the fields of a Command that a request must not bring.
var notInCommand = notInBody{
	"muster.v1.Command.id":           setByServer,
	"muster.v1.Command.expire_time":  setByServer,
	"muster.v1.Command.state":        setByServer,
	"muster.v1.Command.state_reason": setByServer,
	"muster.v1.Command.counts":       setByServer,
	"muster.v1.Command.create_time":  setByServer,
	"muster.v1.Command.end_time":     setByServer,
}

func (s *Server) createCommand(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	key, err := idempotencyKey(c)
	if err != nil {
		return err
	}
	command := &musterv1.Command{}
	if _, err := s.readMessage(c, command, notInCommand); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	created, err := s.commands.CreateCommand(ctx, &musterv1.CreateCommandRequest{Command: command, IdempotencyKey: key})
	if err != nil {
		return inBody(err, "command")
	}
	c.Response().Header().Set("Location", "/v1/commands/"+url.PathEscape(created.GetId()))
	return answer(c, http.StatusAccepted, created)
}

// idempotencyKey is "" without the header. What the key promises is the
// coordinator's to keep.
func idempotencyKey(c echo.Context) (string, error) {
	const header, longest = "Idempotency-Key", 255
	given := c.Request().Header.Values(header)
	if len(given) == 0 {
		return "", nil
	}
	key := given[0]
	ok := len(given) == 1 && key != "" && len(key) <= longest
	for _, b := range []byte(key) {
		ok = ok && b >= ' ' && b <= '~'
	}
	if !ok {
		return "", refuse(http.StatusBadRequest, "INVALID_IDEMPOTENCY_KEY", fmt.Sprintf("%s must be given once, as 1 to %d printable ASCII characters", header, longest))
	}
	return key, nil
}

func (s *Server) listCommands(c echo.Context) error {
	p, err := readPage(c, "order", "filter")
	if err != nil {
		return err
	}
	order, err := p.order()
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListCommandsRequest{PageSize: p.size, PageToken: p.token, Order: order, Filter: p.query["filter"]}
	page, err := s.commands.ListCommands(ctx, request)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getCommand(c echo.Context) error {
	ctx, wait, done, err := s.waiting(c)
	if err != nil {
		return err
	}
	defer done()
	command, err := s.commands.GetCommand(ctx, &musterv1.GetCommandRequest{Id: c.Param("id"), Wait: wait})
	if err != nil {
		return whyEnded(ctx, err)
	}
	return answer(c, http.StatusOK, command)
}

func (s *Server) listTargets(c echo.Context) error {
	p, err := readPage(c, "state")
	if err != nil {
		return err
	}
	states, err := valuesOf[musterv1.Target_State](p.query, "state")
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListTargetsRequest{CommandId: c.Param("id"), PageSize: p.size, PageToken: p.token, States: states}
	page, err := s.commands.ListTargets(ctx, request)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getTarget(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	target, err := s.commands.GetTarget(ctx, &musterv1.GetTargetRequest{CommandId: c.Param("id"), AgentId: c.Param("agent")})
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, target)
}
