package server

import (
	"context"
	"net"
	"sync"
)

// echo sends bytes back as they come. It is the limit: what a server in Go could
// do if its messages cost nothing.
type echo struct{ ln net.Listener }

func listenEcho() (contestant, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	return &echo{ln}, err
}

func (e *echo) addr() string { return e.ln.Addr().String() }
func (e *echo) key() string  { return "" }

func (e *echo) serve(ctx context.Context) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	defer context.AfterFunc(ctx, func() { e.ln.Close() })()
	for {
		nc, err := e.ln.Accept()
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		conns.Go(func() {
			defer nc.Close()
			defer context.AfterFunc(ctx, func() { nc.Close() })()
			sendBack(nc)
		})
	}
}

func sendBack(nc net.Conn) {
	buf := make([]byte, 4<<10) // the messages of a window of 20
	for {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		if _, err := nc.Write(buf[:n]); err != nil {
			return
		}
	}
}
