package northbound

import (
	"net/http"

	"github.com/labstack/echo/v4"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// notInGroup are the fields of a Group that a request must not bring; a preview
// has no name in its path.
var (
	notInPreviewedGroup = notInBody{
		"muster.v1.Group.size":        setByServer,
		"muster.v1.Group.create_time": setByServer,
		"muster.v1.Group.update_time": setByServer,
		"muster.v1.Group.etag":        setByServer,
	}
	notInGroup = notInPreviewedGroup.and("muster.v1.Group.name", inPath)
)

func (s *Server) listGroups(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	page, err := s.groups.ListGroups(ctx, &musterv1.ListGroupsRequest{PageSize: p.size, PageToken: p.token}, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getGroup(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	group, err := s.groups.GetGroup(ctx, &musterv1.GetGroupRequest{Name: c.Param("name")}, largePage)
	if err != nil {
		return err
	}
	setETag(c, group.GetEtag())
	return answer(c, http.StatusOK, group)
}

// putGroup makes a group or replaces one; 201 only where If-None-Match says
// that it is new.
func (s *Server) putGroup(c echo.Context) error {
	q, err := readQuery(c, "dry_run")
	if err != nil {
		return err
	}
	given, err := readCondition(c)
	if err != nil {
		return err
	}
	request := &musterv1.PutGroupRequest{Group: &musterv1.Group{}, IfMatch: given.ifMatch, IfNoneMatch: given.ifNoneMatch}
	if request.DryRun, err = q.flag("dry_run"); err != nil {
		return err
	}
	if _, err := s.readMessage(c, request.Group, notInGroup); err != nil {
		return err
	}
	request.Group.Name = c.Param("name")
	ctx, cancel := call(c, 0)
	defer cancel()
	group, err := s.groups.PutGroup(ctx, request, largePage)
	if err != nil {
		return inBody(err, "group", "name")
	}
	setETag(c, group.GetEtag())
	return answer(c, putStatus(given, request.DryRun), group)
}

// putStatus says whether a PUT made something new, as far as is known.
func putStatus(given condition, dryRun bool) int {
	if given.ifNoneMatch && !dryRun {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (s *Server) deleteGroup(c echo.Context) error {
	if _, err := readQuery(c); err != nil {
		return err
	}
	ifMatch, err := readIfMatch(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	if _, err := s.groups.DeleteGroup(ctx, &musterv1.DeleteGroupRequest{Name: c.Param("name"), IfMatch: ifMatch}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) listGroupAgents(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	page, err := s.groups.ListGroupAgents(ctx, &musterv1.ListGroupAgentsRequest{Name: c.Param("name"), PageSize: p.size, PageToken: p.token})
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

// previewGroup says who would be in a group, and, if the body names one that
// there is, who would join and leave it.
func (s *Server) previewGroup(c echo.Context) error {
	p, err := readPage(c)
	if err != nil {
		return err
	}
	group := &musterv1.Group{}
	if _, err := s.readMessage(c, group, notInPreviewedGroup); err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	preview, err := s.groups.PreviewGroup(ctx, &musterv1.PreviewGroupRequest{Group: group, PageSize: p.size, PageToken: p.token})
	if err != nil {
		return inBody(err, "group", "page_token")
	}
	return answer(c, http.StatusOK, preview)
}
