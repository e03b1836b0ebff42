package coordinator

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// direct is a connection to the coordinator from within its process. A unary call
// runs on the caller's goroutine: over a connection it goes through four others,
// and to wake them takes a tenth of the time until an idle agent has a command.
type direct struct {
	grpc.ClientConnInterface // for all but unary calls of the coordinator's services
	unary                    grpc.UnaryServerInterceptor
	methods                  map[string]method // by their full names
}

type method struct {
	service any
	handler grpc.MethodHandler
}

// Direct is a connection to c for a client in the same process. Its unary calls
// run on the caller's goroutine, with all that holds for those that come to
// ServeGRPC, and may do so at any time; long polls among them end with ctx. All
// else goes over conn, which has to lead to ServeGRPC. Call options are conn's
// alone.
func (c *Coordinator) Direct(ctx context.Context, conn grpc.ClientConnInterface) grpc.ClientConnInterface {
	d := &direct{ClientConnInterface: conn, unary: c.unary, methods: map[string]method{}}
	c.services(ctx, d)
	return d
}

// RegisterService implements grpc.ServiceRegistrar.
func (d *direct) RegisterService(desc *grpc.ServiceDesc, service any) {
	for _, m := range desc.Methods {
		d.methods["/"+desc.ServiceName+"/"+m.MethodName] = method{service, m.Handler}
	}
}

// Invoke implements grpc.ClientConnInterface. Request and response are encoded as
// for a wire: each side may keep and change its own, and what no wire could carry
// is refused.
func (d *direct) Invoke(ctx context.Context, name string, req, resp any, opts ...grpc.CallOption) error {
	m, ok := d.methods[name]
	if !ok {
		return d.ClientConnInterface.Invoke(ctx, name, req, resp, opts...)
	}
	sent, err := proto.Marshal(req.(proto.Message))
	switch {
	case err != nil:
		return status.Errorf(codes.Internal, "request not encoded: %v", err)
	case len(sent) > maxRequest:
		return status.Errorf(codes.ResourceExhausted, "request of %d bytes, at most %d", len(sent), maxRequest)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	inside := metadata.NewIncomingContext(ctx, md)
	answer, err := m.handler(m.service, inside, func(to any) error { return proto.Unmarshal(sent, to.(proto.Message)) }, d.unary)
	switch {
	case err != nil && ctx.Err() != nil: // the caller's word for it, as over a wire
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return status.Convert(err).Err()
	}
	got, err := proto.Marshal(answer.(proto.Message))
	if err != nil {
		return status.Errorf(codes.Internal, "answer not encoded: %v", err)
	}
	return proto.Unmarshal(got, resp.(proto.Message))
}
