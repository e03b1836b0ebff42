package northbound

import (
	"net/http"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var notInApproval = notInBody{"muster.v1.ApproveKeyRequest.id": inPath}

func (s *Server) listKeys(c echo.Context) error {
	p, err := readPage(c, "state")
	if err != nil {
		return err
	}
	request := &musterv1.ListKeysRequest{PageSize: p.size, PageToken: p.token}
	if state, ok := p.query["state"]; ok {
		n, err := valueOf("state", state, request.GetState().Descriptor())
		if err != nil {
			return err
		}
		request.State = musterv1.Key_State(n)
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	page, err := s.keys.ListKeys(ctx, request)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getKey(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	key, err := s.keys.GetKey(ctx, &musterv1.GetKeyRequest{Id: c.Param("id")})
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, key)
}

func (s *Server) approveKey(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	request := &musterv1.ApproveKeyRequest{}
	body, err := s.readOptional(c, request, notInApproval)
	if err != nil {
		return err
	}
	if request.GetAgentId() == "" && hasKey(body, "agent_id") {
		// A script whose variable is empty must not approve under the id that
		// the key's holder wishes for.
		return &fault{Code: "INVALID_VALUE", Path: "agent_id", Message: "is empty; leave it out to take the id that the key asks for"}
	}
	request.Id = c.Param("id")
	ctx, cancel := call(c, 0)
	defer cancel()
	key, err := s.keys.ApproveKey(ctx, request)
	if err != nil {
		return inBody(err, "")
	}
	return answer(c, http.StatusOK, key)
}
