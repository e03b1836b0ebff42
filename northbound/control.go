package northbound

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var notInControl = notInBody{"muster.v1.ControlCommandRequest.id": inPath}

// decision is one of the calls by which an operator steers a command.
type decision func(context.Context, *musterv1.ControlCommandRequest, ...grpc.CallOption) (*musterv1.Command, error)

// controlCommand answers with the command as it is once the decision holds. To
// decide the same twice is no mistake, so a client may repeat what it got no
// answer to.
func (s *Server) controlCommand(decide decision) echo.HandlerFunc {
	return func(c echo.Context) error {
		if _, err := readQuery(c); err != nil {
			return err
		}
		request := &musterv1.ControlCommandRequest{}
		if _, err := s.readOptional(c, request, notInControl); err != nil {
			return err
		}
		request.Id = c.Param("id")
		ctx, cancel := call(c, 0)
		defer cancel()
		command, err := decide(ctx, request)
		if err != nil {
			return inBody(err, "")
		}
		return answer(c, http.StatusOK, command)
	}
}
