package northbound

import (
	"net/http"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// previewCommand says who would get a command. It takes the body of
// createCommand and refuses what that would refuse.
func (s *Server) previewCommand(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	command := &musterv1.Command{}
	if _, err := s.readMessage(c, command, notInCommand); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.PreviewCommandRequest{Command: command, PageSize: p.size, PageToken: p.token}
	preview, err := s.commands.PreviewCommand(ctx, request)
	if err != nil {
		return inBody(err, "command", "page_token")
	}
	return answer(c, http.StatusOK, preview)
}
