package coordinator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var errAway = errors.New("the other way")

// away is a connection that leads nowhere.
type away struct{ grpc.ClientConnInterface }

func (away) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return errAway }

// directTest gives body a direct connection and a context with a token.
func directTest(t *testing.T, body func(t *testing.T, r *rig, ctx context.Context, conn *direct)) {
	file := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if err := EnsureAdminToken(t.Context(), r.store, file); err != nil {
			t.Fatal(err)
		}
		token, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		served, quit := context.WithCancel(t.Context())
		defer quit()
		time.AfterFunc(24*time.Hour, quit)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+strings.TrimSpace(string(token)))
		body(t, r, ctx, r.c.Direct(served, away{}).(*direct))
		r.stop()
		r.store.Close()
	})
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestDirectCallIsLikeOneOverAWire(t *testing.T) {
	directTest(t, func(t *testing.T, r *rig, ctx context.Context, conn *direct) {
		a := r.peer("a").join()
		defer a.leave()
		cmds := musterv1.NewCommandsClient(conn)
		submit := func(ctx context.Context, cmd *musterv1.Command) (*musterv1.Command, error) {
			return cmds.CreateCommand(ctx, &musterv1.CreateCommandRequest{Command: cmd})
		}
		_, err := submit(t.Context(), to("a"))
		wantCode(t, err, codes.Unauthenticated)

		_, err = submit(ctx, to("nobody"))
		if st := status.Convert(err); st.Code() == codes.Unknown || len(st.Details()) == 0 {
			t.Errorf("got %v with %v", err, st.Details())
		}

		broken := to("a")
		broken.Name = "\xff"
		_, err = submit(ctx, broken)
		wantCode(t, err, codes.Internal)

		large := to("a")
		large.Input = make([]byte, maxRequest)
		_, err = submit(ctx, large)
		wantCode(t, err, codes.ResourceExhausted)

		given := to("a")
		cmd, err := submit(ctx, given)
		if err != nil || cmd.Id == "" || given.Id != "" || given.ExpireTime != nil {
			t.Fatalf("got %v, %v; given %v", cmd, err, given)
		}
		synctest.Wait()
		a.wantGot(1)
		given.Target.Agents[0], cmd.Target.Agents[0], cmd.Input[0] = "x", "y", 'z'
		if got := r.command(cmd.Id); got.Target.Agents[0] != "a" || got.Input[0] != '{' {
			t.Errorf("others have changed it: %v", got)
		}
	})
}

func TestDirectCallEndsWithItsContext(t *testing.T) {
	directTest(t, func(t *testing.T, r *rig, ctx context.Context, conn *direct) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		cmds := musterv1.NewCommandsClient(conn)
		poll := &musterv1.GetCommandRequest{Id: cmd.Id, Wait: durationpb.New(48 * time.Hour)}

		gone, cancel := context.WithCancel(ctx)
		cancel()
		_, err := cmds.GetCommand(gone, poll)
		wantCode(t, err, codes.Canceled)

		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = cmds.GetCommand(short, poll)
		wantCode(t, err, codes.DeadlineExceeded)

		began := time.Now()
		if _, err = cmds.GetCommand(ctx, poll); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 24*time.Hour {
			t.Errorf("a long poll took %v, over the end of who served", took)
		}
	})
}

func TestDirectCallThatPanicsEndsNothingElse(t *testing.T) {
	directTest(t, func(t *testing.T, _ *rig, ctx context.Context, conn *direct) {
		conn.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Bad", Methods: []grpc.MethodDesc{{
			MethodName: "Panic",
			Handler: func(_ any, ctx context.Context, _ func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
				return through(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/test.Bad/Panic"}, func(context.Context, any) (any, error) { panic("bad") })
			},
		}}}, nil)
		err := conn.Invoke(ctx, "/test.Bad/Panic", &musterv1.Command{}, &musterv1.Command{})
		wantCode(t, err, codes.Internal)
	})
}

func TestWhatIsNotTheCoordinatorsGoesOverTheConnection(t *testing.T) {
	directTest(t, func(t *testing.T, _ *rig, ctx context.Context, conn *direct) {
		if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); !errors.Is(err, errAway) {
			t.Errorf("got %v", err)
		}
	})
}
