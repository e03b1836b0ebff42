package northbound

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// getHealth answers while the process lives.
func (s *Server) getHealth(c echo.Context) error {
	return c.JSONBlob(http.StatusOK, []byte(`{"status":"OK"}`))
}

// getReadiness answers 200 while the coordinator says that it serves.
func (s *Server) getReadiness(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	answer, err := s.health.Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		s.log.Debug("not ready", "status", answer.GetStatus(), "err", err)
		return refuse(http.StatusServiceUnavailable, "NOT_READY", "the coordinator does not serve yet").with("Retry-After", "1")
	}
	return c.JSONBlob(http.StatusOK, []byte(`{"status":"READY"}`))
}
