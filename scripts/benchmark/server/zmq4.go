package server

import (
	"context"
	"fmt"

	"github.com/go-zeromq/zmq4"
)

// zmq4Router is zmq4's own ROUTER.
type zmq4Router struct {
	socket zmq4.Socket
	cancel context.CancelFunc
}

func listenZMQ4() (contestant, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &zmq4Router{zmq4.NewRouter(ctx), cancel}
	return r, r.socket.Listen("tcp://127.0.0.1:0")
}

func (r *zmq4Router) addr() string { return r.socket.Addr().String() }
func (r *zmq4Router) key() string  { return "" }

func (r *zmq4Router) serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.cancel)()
	for {
		m, err := r.socket.Recv()
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("zmq4: %w", err)
		}
		r.socket.SendMulti(m) // fails when the peer is gone, which is not our end
	}
}
