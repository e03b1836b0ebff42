package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	shutdownGrace = time.Second // for a request in progress, after the end
	maxRequest    = 8 << 20     // bytes
)

// ServeGRPC answers operators on ln until ctx ends: every northbound operation
// is here once, and what holds for all of them is an interceptor. Long polls
// and event streams end with ctx, other requests get a second.
func (c *Coordinator) ServeGRPC(ctx context.Context, ln net.Listener) error {
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(c.unary),
		grpc.ChainStreamInterceptor(c.guardStream, c.tokens.stream),
		grpc.MaxRecvMsgSize(maxRequest),
	)
	c.services(ctx, srv)
	hs := health.NewServer()
	healthv1.RegisterHealthServer(srv, hs)

	g, stopped := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := srv.Serve(ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
			return fmt.Errorf("grpc: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-stopped.Done()
		hs.Shutdown()
		hard := time.AfterFunc(shutdownGrace, srv.Stop)
		defer hard.Stop()
		srv.GracefulStop()
		return nil
	})
	return g.Wait()
}

// services registers every northbound service. Long polls end with ctx.
func (c *Coordinator) services(ctx context.Context, srv grpc.ServiceRegistrar) {
	musterv1.RegisterAgentsServer(srv, &agentService{c: c})
	musterv1.RegisterCommandsServer(srv, &commandService{c: c, quit: ctx.Done()})
	musterv1.RegisterEventsServer(srv, &eventService{c: c, quit: ctx.Done()})
	musterv1.RegisterKeysServer(srv, &keyService{c: c})
	musterv1.RegisterGroupsServer(srv, &groupService{c: c})
	musterv1.RegisterConfigsServer(srv, &configService{c: c})
	musterv1.RegisterConfigRolloutsServer(srv, &configRolloutService{c: c, quit: ctx.Done()})
}

// unary is what holds for every unary call.
func (c *Coordinator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer c.guard(info.FullMethod, &err)
	return c.tokens.unary(ctx, req, info, next)
}

func (c *Coordinator) guardStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer c.guard(info.FullMethod, &err)
	return next(srv, s)
}

// guard turns any error into a status, and a panic into INTERNAL, so that one
// bad request ends nothing but itself.
func (c *Coordinator) guard(method string, err *error) {
	if r := recover(); r != nil {
		c.log.Error("panic in a request", "method", method, "err", r, "stack", string(debug.Stack()))
		*err = fail(codes.Internal, "INTERNAL", "internal error")
		return
	}
	if *err != nil && !isStatus(*err) {
		if s := toStatus(*err); s != *err {
			c.log.Warn("request failed", "method", method, "err", *err)
			*err = s
		}
	}
}
