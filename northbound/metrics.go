package northbound

import (
	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// admitted has the coordinator judge the caller's token before next, which
// does not ask it anything.
func (s *Server) admitted(next echo.HandlerFunc) echo.HandlerFunc {
	return bearer(func(c echo.Context) error {
		ctx, cancel := call(c, 0)
		defer cancel()
		if _, err := s.agents.ListAgents(ctx, &musterv1.ListAgentsRequest{PageSize: 1}, largePage); err != nil {
			return err
		}
		return next(c)
	})
}

// getMetrics takes every parameter: they are those of the handler.
func (s *Server) getMetrics(c echo.Context) error {
	s.metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}
