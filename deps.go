//go:build deps

package deps

import (
	_ "cel.dev/cel-go/cel"
	_ "github.com/go-zeromq/zmq4"
	_ "github.com/go-zeromq/zmq4/security/null"
	_ "github.com/jedib0t/go-pretty/v6/table"
	_ "github.com/jedib0t/go-pretty/v6/text"
	_ "github.com/labstack/echo/v4"
	_ "github.com/labstack/echo/v4/middleware"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/client_golang/prometheus/testutil"
	_ "github.com/urfave/cli/v2"
	_ "go.etcd.io/bbolt"
	_ "golang.org/x/crypto/nacl/box"
	_ "golang.org/x/crypto/nacl/secretbox"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/time/rate"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/health"
	_ "google.golang.org/grpc/test/bufconn"
	_ "pgregory.net/rapid"
)
