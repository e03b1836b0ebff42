package northbound

import "github.com/labstack/echo/v4"

// routes lists the whole service.
func (s *Server) routes(openMetrics bool) {
	s.get("/healthz", s.getHealth)
	s.get("/readyz", s.getReadiness)
	switch {
	case s.metrics == nil:
	case openMetrics:
		s.get("/metrics", s.getMetrics)
	default:
		s.get("/metrics", s.admitted(s.getMetrics))
	}

	s.get("/v1/agents", bearer(s.listAgents))
	s.get("/v1/agents/:id", bearer(s.getAgent))
	s.echo.DELETE("/v1/agents/:id", bearer(s.deleteAgent))
	s.echo.PUT("/v1/agents/:id/maintenance", bearer(s.setMaintenance))
	s.get("/v1/agents/:id/configs", bearer(s.getAgentConfigs))

	s.commandRoutes()
	s.groupRoutes()
	s.configRoutes()
	s.rolloutRoutes()

	s.get("/v1/keys", bearer(s.listKeys))
	s.get("/v1/keys/:id", bearer(s.getKey))
	s.echo.POST("/v1/keys/:id/approve", bearer(s.approveKey))
	s.echo.POST("/v1/keys/:id/revoke", bearer(decided(s, s.keys.RevokeKey)))

	s.get("/v1/events", bearer(s.streamEvents))
}

func (s *Server) commandRoutes() {
	s.get("/v1/commands", bearer(s.listCommands))
	s.echo.POST("/v1/commands", bearer(s.createCommand))
	s.echo.POST("/v1/commands/preview", bearer(s.previewCommand)) // no id is "preview"
	s.get("/v1/commands/:id", bearer(s.getCommand))
	s.echo.POST("/v1/commands/:id/cancel", bearer(decided(s, s.commands.CancelCommand)))
	s.echo.POST("/v1/commands/:id/pause", bearer(decided(s, s.commands.PauseCommand)))
	s.echo.POST("/v1/commands/:id/resume", bearer(decided(s, s.commands.ResumeCommand)))
	s.get("/v1/commands/:id/targets", bearer(s.listTargets))
	s.get("/v1/commands/:id/targets/:agent", bearer(s.getTarget))
	s.get("/v1/commands/:id/targets/:agent/output", bearer(s.getOutput))
}

func (s *Server) groupRoutes() {
	s.get("/v1/groups", bearer(s.listGroups))
	s.echo.POST("/v1/groups/preview", bearer(s.previewGroup)) // a group may have that name: it has no POST
	s.get("/v1/groups/:name", bearer(s.getGroup))
	s.echo.PUT("/v1/groups/:name", bearer(s.putGroup))
	s.echo.DELETE("/v1/groups/:name", bearer(s.deleteGroup))
	s.get("/v1/groups/:name/agents", bearer(s.listGroupAgents))
}

func (s *Server) configRoutes() {
	s.get("/v1/configs", bearer(s.listConfigs))
	s.echo.POST("/v1/configs/preview", bearer(s.previewConfig)) // a config may have that name: it has no POST
	s.get("/v1/configs/:name", bearer(s.getConfig))
	s.echo.PUT("/v1/configs/:name", bearer(s.putConfig))
	s.echo.DELETE("/v1/configs/:name", bearer(s.deleteConfig))
	s.get("/v1/configs/:name/versions", bearer(s.listVersions))
	s.echo.POST("/v1/configs/:name/versions", bearer(s.createVersion))
	s.get("/v1/configs/:name/versions/:version", bearer(s.getVersion))
	s.get("/v1/configs/:name/versions/:version/content", bearer(s.getContent))
	s.get("/v1/configs/:name/diff", bearer(s.diffConfig))
	s.get("/v1/configs/:name/status", bearer(s.listConfigStatus))
	s.get("/v1/configs/:name/rollouts", bearer(s.listRollouts))
	s.echo.POST("/v1/configs/:name/rollouts", bearer(s.createRollout))
}

func (s *Server) rolloutRoutes() {
	s.get("/v1/rollouts", bearer(s.listRollouts))
	s.get("/v1/rollouts/:id", bearer(s.getRollout))
	s.get("/v1/rollouts/:id/targets", bearer(s.listRolloutTargets))
	s.echo.POST("/v1/rollouts/:id/pause", bearer(decided(s, s.rollouts.PauseConfigRollout)))
	s.echo.POST("/v1/rollouts/:id/resume", bearer(decided(s, s.rollouts.ResumeConfigRollout)))
	s.echo.POST("/v1/rollouts/:id/abort", bearer(decided(s, s.rollouts.AbortConfigRollout)))
}

// get adds a route that is read: HEAD is answered where GET is.
func (s *Server) get(path string, h echo.HandlerFunc) {
	s.echo.GET(path, h)
	s.echo.HEAD(path, h)
}
