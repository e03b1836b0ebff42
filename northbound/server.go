package northbound

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// shutdownGrace is how long a request in progress may go on once the server is
// told to stop. Long polls and event streams end at once.
const shutdownGrace = time.Second

// Config says what a Server needs besides its coordinator.
type Config struct {
	Log         *slog.Logger // nil: no log
	Metrics     http.Handler // answers /metrics; nil: there is none
	OpenMetrics bool         // /metrics needs no token
}

// Server is the REST service. It is an http.Handler; Serve adds the limits of a
// real network.
type Server struct {
	agents   musterv1.AgentsClient
	commands musterv1.CommandsClient
	events   musterv1.EventsClient
	keys     musterv1.KeysClient
	groups   musterv1.GroupsClient
	configs  musterv1.ConfigsClient
	rollouts musterv1.ConfigRolloutsClient
	health   healthv1.HealthClient
	metrics  http.Handler
	log      *slog.Logger
	echo     *echo.Echo

	receiving atomic.Int64 // bytes of bodies
	open      atomic.Int64 // connections
	conns     sync.WaitGroup

	stop     func() // ends long polls and event streams
	stopping chan struct{}
}

// New builds a Server that asks the services behind conn. conn stays the
// caller's to close, after Serve has returned. It should be dialled with
// grpc.WithStaticStreamWindowSize(64 << 10): gRPC's own window grows up to
// 16 MiB, which each event client that does not read could then hold.
func New(conn grpc.ClientConnInterface, config Config) *Server {
	s := &Server{
		agents:   musterv1.NewAgentsClient(conn),
		commands: musterv1.NewCommandsClient(conn),
		events:   musterv1.NewEventsClient(conn),
		keys:     musterv1.NewKeysClient(conn),
		groups:   musterv1.NewGroupsClient(conn),
		configs:  musterv1.NewConfigsClient(conn),
		rollouts: musterv1.NewConfigRolloutsClient(conn),
		health:   healthv1.NewHealthClient(conn),
		metrics:  config.Metrics,
		log:      config.Log,
		echo:     echo.New(),
		stopping: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.stop = sync.OnceFunc(func() { close(s.stopping) })
	s.echo.HTTPErrorHandler = s.answerError
	s.echo.Use(s.logged, s.recovered, bounded, onePath)
	s.routes(config.OpenMetrics)
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.echo.ServeHTTP(w, r)
}

// Serve answers requests on ln until ctx ends or ln fails, and returns when
// the last connection is gone: nil after ctx ended. It may be called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnState:         s.onConn,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // what peers do wrong
	}
	g, stopped := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := hs.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-stopped.Done()
		s.stop()
		grace, cancel := context.WithTimeout(requests, shutdownGrace)
		defer cancel()
		if hs.Shutdown(grace) != nil {
			cut()
			_ = hs.Close() // of connections whose peers may be gone
		}
		return nil
	})
	err := g.Wait()
	s.conns.Wait()
	return err
}

// recovered keeps a panic to its own request.
func (s *Server) recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v)
			default:
				s.log.Error("panic in a request", "path", c.Request().URL.Path, "err", v, "stack", string(debug.Stack()))
				err = refuse(http.StatusInternalServerError, "INTERNAL", "internal error")
			}
		}()
		return next(c)
	}
}

// onePath lets a resource have one path only: a slash too many is 404 (Echo
// takes "/agents/a/" for the id "a/"). It decodes the ids in the path, once:
// Echo does not when the path came with escapes that matter.
func onePath(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		path := echo.GetPath(c.Request())
		if strings.Count(path, "/") != strings.Count(c.Path(), "/") || strings.Contains(path+"/", "//") {
			return errNotFound
		}
		ids, err := decodeIDs(c.ParamValues(), c.Request().URL.RawPath != "")
		if err != nil {
			return err
		}
		c.SetParamValues(ids...)
		return next(c)
	}
}

func decodeIDs(ids []string, encoded bool) ([]string, error) {
	decoded := make([]string, len(ids))
	for i, id := range ids {
		if encoded {
			var err error
			if id, err = url.PathUnescape(id); err != nil {
				return nil, refuse(http.StatusBadRequest, "MALFORMED_PATH", "the path is not correctly encoded")
			}
		}
		if !utf8.ValidString(id) {
			return nil, refuse(http.StatusBadRequest, "MALFORMED_PATH", "the path is not UTF-8")
		}
		decoded[i] = id
	}
	return decoded, nil
}

// untilStop is ctx, ended with errStopping when the server stops. done frees it.
func (s *Server) untilStop(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// waiting is the context of a call that may be asked to ?wait=, and the wait (nil:
// none). It ends with errStopping, too, when the server stops. done frees it.
func (s *Server) waiting(c echo.Context) (ctx context.Context, wait *durationpb.Duration, done func(), err error) {
	q, err := readQuery(c, "wait")
	if err != nil {
		return nil, nil, nil, err
	}
	d, err := q.wait()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := call(c, d)
	if d == 0 {
		return ctx, nil, cancel, nil
	}
	ctx, free := s.untilStop(ctx)
	return ctx, durationpb.New(d), func() { free(); cancel() }, nil
}

// whyEnded is err, or errStopping if that has ended the call.
func whyEnded(ctx context.Context, err error) error {
	if context.Cause(ctx) == errStopping {
		return errStopping
	}
	return err
}

// call is the context of one gRPC call of a request: it has the caller's token
// and ends with the request, and after callTimeout and extra at the latest.
func call(c echo.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	const callTimeout = 30 * time.Second
	return context.WithTimeout(c.Request().Context(), callTimeout+extra)
}
