package northbound

import (
	"net/http"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// notInConfig are the fields of a Config that a request must not bring; a
// preview has no name in its path.
var (
	notInPreviewedConfig = notInBody{
		"muster.v1.Config.latest_version": setByServer,
		"muster.v1.Config.create_time":    setByServer,
		"muster.v1.Config.update_time":    setByServer,
		"muster.v1.Config.etag":           setByServer,
		"muster.v1.Config.rollout_id":     setByServer,
		"muster.v1.Config.counts":         setByServer,
	}
	notInConfig = notInPreviewedConfig.and("muster.v1.Config.name", inPath)
)

func (s *Server) listConfigs(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	page, err := s.configs.ListConfigs(ctx, &musterv1.ListConfigsRequest{PageSize: p.size, PageToken: p.token}, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getConfig(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	config, err := s.configs.GetConfig(ctx, &musterv1.GetConfigRequest{Name: c.Param("name")})
	if err != nil {
		return err
	}
	setETag(c, config.GetEtag())
	return answer(c, http.StatusOK, config)
}

// putConfig makes the head of a config or replaces it; with keep_bindings the
// body has none, and those that are there stay.
func (s *Server) putConfig(c echo.Context) error {
	q, err := readQuery(c, "dry_run", "keep_bindings")
	if err != nil {
		return err
	}
	given, err := readCondition(c)
	if err != nil {
		return err
	}
	request := &musterv1.PutConfigRequest{Config: &musterv1.Config{}, IfMatch: given.ifMatch, IfNoneMatch: given.ifNoneMatch}
	if request.DryRun, err = q.flag("dry_run"); err != nil {
		return err
	}
	if request.KeepBindings, err = q.flag("keep_bindings"); err != nil {
		return err
	}
	if _, err := s.readMessage(c, request.Config, notInConfig); err != nil {
		return err
	}
	request.Config.Name = c.Param("name")
	ctx, cancel := call(c, 0)
	defer cancel()
	config, err := s.configs.PutConfig(ctx, request)
	if err != nil {
		return inBody(err, "config", "name", "keep_bindings")
	}
	setETag(c, config.GetEtag())
	return answer(c, putStatus(given, request.DryRun), config)
}

func (s *Server) deleteConfig(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ifMatch, err := readIfMatch(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	if _, err := s.configs.DeleteConfig(ctx, &musterv1.DeleteConfigRequest{Name: c.Param("name"), IfMatch: ifMatch}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// previewConfig says who would get what by the bindings in the body.
func (s *Server) previewConfig(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	config := &musterv1.Config{}
	if _, err := s.readMessage(c, config, notInPreviewedConfig); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	preview, err := s.configs.PreviewConfig(ctx, &musterv1.PreviewConfigRequest{Config: config, PageSize: p.size, PageToken: p.token})
	if err != nil {
		return inBody(err, "config", "page_token")
	}
	return answer(c, http.StatusOK, preview)
}

func (s *Server) diffConfig(c echo.Context) error {
	q, err := readQuery(c, "from", "to")
	if err != nil {
		return err
	}
	request := &musterv1.DiffConfigRequest{Config: c.Param("name")}
	if request.From, err = q.version("from"); err != nil {
		return err
	}
	if request.To, err = q.version("to"); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	diff, err := s.configs.DiffConfig(ctx, request, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, diff)
}

func (s *Server) listConfigStatus(c echo.Context) error {
	p, err := readPage(c, "status")
	if err != nil {
		return err
	}
	statuses, err := valuesOf[musterv1.ConfigStatus_Status](p.query, "status")
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListConfigStatusRequest{Config: c.Param("name"), PageSize: p.size, PageToken: p.token, Statuses: statuses}
	page, err := s.configs.ListConfigStatus(ctx, request, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getAgentConfigs(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	configs, err := s.configs.GetAgentConfigs(ctx, &musterv1.GetAgentConfigsRequest{AgentId: c.Param("id")}, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, configs)
}
