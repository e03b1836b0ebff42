package bustest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus/bustest"
)

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := bustest.Pipe()
		if n, err := a.Write([]byte("hello")); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		buf := make([]byte, bustest.Buffered*2)

		// As with a socket, a deadline that passed hides what is there.
		b.SetReadDeadline(time.Now())
		if _, err := b.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read after the deadline: %v", err)
		}
		b.SetReadDeadline(time.Time{})
		if n, err := b.Read(buf); string(buf[:n]) != "hello" || err != nil {
			t.Errorf("read %q, %v", buf[:n], err)
		}

		// Read and write deadlines are two, and wake who waits.
		start := time.Now()
		a.SetWriteDeadline(start.Add(time.Second))
		a.SetReadDeadline(start.Add(2 * time.Second))
		if n, err := a.Write(buf); n != bustest.Buffered || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("wrote %d after %v: %v", n, time.Since(start), err)
		}
		if _, err := a.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("read ended after %v: %v", time.Since(start), err)
		}

		// The rest can be read before the end is seen.
		a.(interface{ CloseWrite() error }).CloseWrite()
		if n, err := io.ReadFull(b, buf[:bustest.Buffered]); n != bustest.Buffered || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		if _, err := b.Read(buf); err != io.EOF {
			t.Errorf("read at the end: %v", err)
		}
		b.Close()
		if _, err := a.Write([]byte("x")); err == nil {
			t.Error("wrote to a closed end")
		}
		if _, err := b.Read(buf); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
		a.Close()
	})
}

func TestNet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := bustest.NewNet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dialed nobody: %v", err)
		}
		far := make(chan net.Conn)
		go func() {
			nc, _ := n.Accept()
			far <- nc
		}()
		near, err := n.Dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		accepted := <-far
		n.Cut()
		for _, nc := range []net.Conn{near, accepted} {
			if _, err := nc.Read(make([]byte, 1)); err == nil {
				t.Error("still there after Cut")
			}
		}
		n.Close()
		if _, err := n.Dial(t.Context(), ""); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dialed a closed network: %v", err)
		}
	})
}
