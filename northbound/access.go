package northbound

import (
	"time"

	"github.com/labstack/echo/v4"
)

// logged writes one line per request when its answer has ended. The route
// stands for the path: what a client sent, such as its token, is in no line.
func (s *Server) logged(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		defer func() { // also when the answer is cut, which is a panic
			s.log.Debug("request", "method", c.Request().Method, "route", c.Path(), "status", c.Response().Status, "duration", time.Since(start))
		}()
		if err := next(c); err != nil {
			c.Error(err) // now, for the status
		}
		return nil
	}
}
