package northbound

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// decided is the handler of a call by which an operator steers what the path
// names. It answers with that as it is once the decision holds. To decide the
// same twice is no mistake, so a client may repeat what it got no answer to.
func decided[Q any, M interface {
	*Q
	proto.Message
}, R proto.Message](s *Server, decide func(context.Context, M, ...grpc.CallOption) (R, error)) echo.HandlerFunc {
	id := M(new(Q)).ProtoReflect().Descriptor().Fields().ByName("id")
	not := notInBody{id.FullName(): inPath}
	return func(c echo.Context) error {
		if _, err := readQuery(c); err != nil {
			return err
		}
		request := M(new(Q))
		if _, err := s.readOptional(c, request, not); err != nil {
			return err
		}
		request.ProtoReflect().Set(id, protoreflect.ValueOfString(c.Param("id")))
		ctx, cancel := call(c, 0)
		defer cancel()
		resource, err := decide(ctx, request)
		if err != nil {
			return inBody(err, "")
		}
		return answer(c, http.StatusOK, resource)
	}
}
