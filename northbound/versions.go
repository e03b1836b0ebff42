package northbound

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// How a version is to be made is asked in the query, whatever form the body has.
var (
	inQuery      = barred{"IN_QUERY", "is given as a parameter of the query; leave it out"}
	notInVersion = notInBody{
		"muster.v1.CreateConfigVersionRequest.config":       inPath,
		"muster.v1.CreateConfigVersionRequest.base_version": inQuery,
		"muster.v1.CreateConfigVersionRequest.dry_run":      inQuery,
		"muster.v1.CreateConfigVersionRequest.unless_same":  inQuery,
		"muster.v1.CreateConfigVersionRequest.kind":         inQuery,
	}
	versionForm = bodyForm{"application/json", maxContentBody}
	contentForm = bodyForm{"application/octet-stream", maxContent}
)

// createVersion takes the version as JSON, or its content as the plain body and
// the rest as parameters.
func (s *Server) createVersion(c echo.Context) error {
	request, err := s.readVersion(c)
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	latest := int32(0) // before
	if request.GetUnlessSame() && !request.GetDryRun() {
		config, err := s.configs.GetConfig(ctx, &musterv1.GetConfigRequest{Name: request.GetConfig()})
		if err != nil {
			return err
		}
		latest = config.GetLatestVersion()
	}
	version, err := s.configs.CreateConfigVersion(ctx, request)
	if err != nil {
		return inBody(err, "", "config", "base_version", "kind")
	}
	if request.GetDryRun() {
		return answer(c, http.StatusOK, version)
	}
	status := http.StatusCreated
	if request.GetUnlessSame() && version.GetVersion() <= latest {
		status = http.StatusOK // it was there
	}
	at := fmt.Sprintf("/v1/configs/%s/versions/%d", url.PathEscape(request.GetConfig()), version.GetVersion())
	c.Response().Header().Set("Location", at)
	return answer(c, status, version)
}

func (s *Server) readVersion(c echo.Context) (*musterv1.CreateConfigVersionRequest, error) {
	form, err := checkHeaders(c.Request(), versionForm, contentForm)
	if err != nil {
		return nil, err
	}
	known := []string{"base_version", "dry_run", "unless_same", "kind"}
	if form == contentForm {
		known = append(known, "note", "path", "mode", "timeout", "check_cmd", "reload_cmd")
	}
	q, err := readQuery(c, known...)
	if err != nil {
		return nil, err
	}
	request := &musterv1.CreateConfigVersionRequest{}
	if err := q.versionTerms(request); err != nil {
		return nil, err
	}
	body, err := s.readBody(c, form.limit)
	if err != nil {
		return nil, err
	}
	switch {
	case form == contentForm:
		request.Content, request.Note = body, q["note"]
		request.File, err = q.fileSpec()
	case len(body) == 0:
		err = errEmptyBody
	default:
		err = readJSON(body, request, notInVersion)
	}
	request.Config = c.Param("name")
	return request, err
}

func (q query) versionTerms(request *musterv1.CreateConfigVersionRequest) (err error) {
	if request.DryRun, err = q.flag("dry_run"); err != nil {
		return err
	}
	if request.UnlessSame, err = q.flag("unless_same"); err != nil {
		return err
	}
	if text, ok := q["kind"]; ok {
		n, err := valueOf("kind", text, request.Kind.Descriptor())
		if err != nil {
			return err
		}
		request.Kind = musterv1.Config_Kind(n)
	}
	if q["base_version"] != "" {
		request.BaseVersion, err = q.version("base_version")
	}
	return err
}

// fileSpec is nil when no parameter tells anything of the file.
func (q query) fileSpec() (*musterv1.FileSpec, error) {
	file := &musterv1.FileSpec{Path: q["path"], Mode: q["mode"]}
	given := file.Path != "" || file.Mode != ""
	if text, ok := q["timeout"]; ok {
		d, err := parseDuration(text)
		if err != nil {
			return nil, badParameter("timeout", "timeout: %v", err)
		}
		file.Timeout, given = durationpb.New(d), true
	}
	for _, name := range []string{"check_cmd", "reload_cmd"} {
		text, ok := q[name]
		if !ok {
			continue
		}
		r := reader{scanner: scanner{data: []byte(text)}}
		m := file.ProtoReflect()
		err := r.field(m, m.Descriptor().Fields().ByName(protoreflect.Name(name)))
		if err == nil {
			err = r.end()
		}
		if err != nil {
			return nil, badParameter(name, `%s must be a JSON array of strings such as ["test", "-s", "{}"]: %v`, name, err)
		}
		given = true
	}
	if !given {
		return nil, nil
	}
	return file, nil
}

// version is a required parameter.
func (q query) version(name string) (int32, error) {
	text, ok := q[name]
	if !ok {
		return 0, badParameter(name, "%s is missing; name a version, from 1", name)
	}
	return versionOf(name, text)
}

// versionOf takes one way to write a number, so that a version has one path.
func versionOf(name, text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || n > math.MaxInt32 || text[0] == '0' {
		return 0, badParameter(name, "%s must be a whole number from 1", name)
	}
	return int32(n), nil
}

func (s *Server) listVersions(c echo.Context) error {
	p, err := readPage(c, "order")
	if err != nil {
		return err
	}
	order, err := p.order()
	if err != nil {
		return err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	request := &musterv1.ListConfigVersionsRequest{
		Config: c.Param("name"), PageSize: p.size, PageToken: p.token, Ascending: order == musterv1.Order_ASC,
	}
	page, err := s.configs.ListConfigVersions(ctx, request, largePage)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, page)
}

func (s *Server) getVersion(c echo.Context) error {
	version, err := s.version(c)
	if err != nil {
		return err
	}
	return answer(c, http.StatusOK, version)
}

// version asks for the version that the path names.
func (s *Server) version(c echo.Context) (*musterv1.ConfigVersion, error) {
	if _, err := readQuery(c); err != nil {
		return nil, err
	}
	n, err := versionOf("version", c.Param("version"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := call(c, 0)
	defer cancel()
	return s.configs.GetConfigVersion(ctx, &musterv1.GetConfigVersionRequest{Config: c.Param("name"), Version: n})
}

// getContent sends the bytes of a version as they are. They never change, so
// their hash is the ETag and a client that has them is told so.
func (s *Server) getContent(c echo.Context) error {
	version, err := s.version(c)
	if err != nil {
		return err
	}
	setETag(c, version.GetSha256())
	if isCurrent(c.Request(), version.GetSha256()) {
		return c.NoContent(http.StatusNotModified)
	}
	header := c.Response().Header()
	header.Set("Content-Type", contentForm.kind)
	header.Set("Content-Length", strconv.FormatUint(uint64(version.GetSize()), 10))
	if c.Request().Method == http.MethodHead {
		return c.NoContent(http.StatusOK)
	}
	ctx, cancel := call(c, outputTime)
	defer cancel()
	parts, err := s.configs.ReadConfigContent(ctx, &musterv1.ReadConfigContentRequest{Config: c.Param("name"), Version: version.GetVersion()})
	if err != nil {
		return err
	}
	return sendOutput(c.Response(), contentParts(parts, int(version.GetSize())))
}

// contentParts yields an error where there is not as much as there shall be.
func contentParts(parts grpc.ServerStreamingClient[musterv1.ConfigContentPart], size int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for got := 0; ; {
			part, err := parts.Recv()
			got += len(part.GetData())
			ended := errors.Is(err, io.EOF)
			switch {
			case ended && got == size:
				return
			case ended || got > size:
				err = fmt.Errorf("the content has %d bytes, its version says %d", got, size)
			}
			if !yield(part.GetData(), err) || err != nil {
				return
			}
		}
	}
}
