package northbound

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// largePage lets a page of agents with long attributes through, which gRPC alone
// stops at 4 MiB.
var largePage = grpc.MaxCallRecvMsgSize(32 << 20)

func (s *Server) listAgents(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	page, err := s.agents.ListAgents(ctx, &musterv1.ListAgentsRequest{PageSize: p.size, PageToken: p.token}, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getAgent(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	agent, err := s.agents.GetAgent(ctx, &musterv1.GetAgentRequest{Id: c.Param("id")})
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, agent)
}

var notInMaintenance = notInBody{"muster.v1.SetMaintenanceRequest.id": inPath}

// setMaintenance holds an agent's queue or frees it. The body says which: an
// empty one would free it by surprise.
func (s *Server) setMaintenance(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	request := &musterv1.SetMaintenanceRequest{}
	body, err := s.readMessage(c, request, notInMaintenance)
	if err != nil {
		return err
	}
	if !hasKey(body, "maintenance") {
		return &fault{Code: "MISSING_FIELD", Path: "maintenance", Message: "is missing; say true or false"}
	}
	request.Id = c.Param("id")
	ctx, cancel := call(c, 0)
	defer cancel()
	agent, err := s.agents.SetMaintenance(ctx, request)
	if err != nil {
		return inBody(err, "")
	}
	return answer(c, http.StatusOK, agent)
}

// deleteAgent forgets an agent, ends what waits for it, and closes its link.
func (s *Server) deleteAgent(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	if _, err := s.agents.DeleteAgent(ctx, &musterv1.DeleteAgentRequest{Id: c.Param("id")}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func answer(c echo.Context, status int, m proto.Message) error {
	return c.JSONBlob(status, writeJSON(m))
}
