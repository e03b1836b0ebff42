package northbound

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Every goroutine that Serve started is gone when it returns: one that is left
// would end the bubble with "deadlock".
func TestServeStopsWithStreamsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := working()
		fake.commands.get = func(ctx context.Context, r *musterv1.GetCommandRequest) (*musterv1.Command, error) {
			<-ctx.Done() // also with no wait: a coordinator that hangs
			return nil, ctx.Err()
		}
		n := serve(t, fake)
		_, stream := n.watching(t, eventsHead)
		stuck, _ := n.watching(t, eventsHead)
		poll, slow, silent, half := n.dial(t), n.dial(t), n.dial(t), n.dial(t)
		poll.send(t, "GET /v1/commands/c?wait=30s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
		slow.send(t, "GET /v1/commands/c HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
		half.send(t, postHead+"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		synctest.Wait()

		start := time.Now()
		n.stop()
		if got, err := io.ReadAll(stream.body); err != nil || len(got) > 0 {
			t.Errorf("the stream ends with %q, %v", got, err)
		}
		got := poll.answer(t, "GET")
		got.want(t, 503, "STOPPING")
		if took := time.Since(start); took != 0 || got.header.Get("Retry-After") != "1" {
			t.Errorf("streams and polls ended after %v", took)
		}
		if err := <-n.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if took := time.Since(start); took < shutdownGrace || took >= 2*time.Second {
			t.Errorf("Serve returned after %v", took)
		}
		if n.open.Load() != 0 {
			t.Errorf("%d connections are still counted", n.open.Load())
		}
		for _, c := range []*client{stuck, slow, silent, half} {
			_, _ = io.Copy(io.Discard, c.in) // ends: the server closed it
		}
		if _, err := n.ln.Dial(); err == nil {
			t.Error("the listener is still open")
		}
	})
}

func TestServeStopsAtOnceWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, working())
		c := n.dial(t)
		c.send(t, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		c.answer(t, "GET")
		start := time.Now()
		n.stop()
		if err := <-n.ended; err != nil || time.Since(start) > 10*time.Millisecond {
			t.Errorf("Serve: %v after %v", err, time.Since(start))
		}
	})
}

func TestServeTellsOfABrokenListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{Server: service(t, working())}
		broken := errors.New("out of descriptors for good")
		if err := n.Serve(t.Context(), brokenListener{broken}); !errors.Is(err, broken) {
			t.Errorf("Serve: %v", err)
		}
	})
}

type brokenListener struct{ err error }

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }
func (l brokenListener) Close() error              { return nil }
func (l brokenListener) Addr() net.Addr            { return &net.UnixAddr{} }

// Clients that send a header byte every 5 s, and idle ones.
func TestC105SlowAndIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Of each. Each ends by a deadline in the past, on which the runtime of Go
		// 1.26 has crashed once, in a bubble with the race detector, among 300.
		const count = 40
		n := serve(t, working())
		start := time.Now()
		slowEnd, idleEnd := make(chan time.Duration, count), make(chan time.Duration, count)
		for range count {
			slow, idle := n.dial(t), n.dial(t)
			go func() {
				go func() {
					for _, b := range []byte("GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 100)) {
						if _, err := slow.Write([]byte{b}); err != nil {
							return
						}
						time.Sleep(5 * time.Second)
					}
				}()
				_, _ = io.Copy(io.Discard, slow.in)
				slowEnd <- time.Since(start)
			}()
			go func() {
				_, _ = io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, idle.in)
				idleEnd <- time.Since(start)
			}()
		}
		synctest.Wait()
		c := n.dial(t)
		c.send(t, "GET /v1/agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n")
		if got := c.answer(t, "GET"); got.status != 200 || time.Since(start) > time.Second {
			t.Errorf("a good request among them: %d after %v", got.status, time.Since(start))
		}
		for range count {
			if took := <-slowEnd; took > headerTimeout+time.Second {
				t.Fatalf("a slow connection ended after %v", took)
			}
		}
		for range count {
			if took := <-idleEnd; took > idleTimeout+time.Second {
				t.Fatalf("an idle connection ended after %v", took)
			}
		}
	})
}

func TestC105LargeHeaders(t *testing.T) {
	n := serve(t, working())
	for name, headers := range map[string]string{
		"1 MiB in one": "X: " + strings.Repeat("y", 1<<20) + "\r\n",
		"10,000":       strings.Repeat("X-Y: z\r\n", 10_000),
		"a long path":  "",
	} {
		path := "/healthz"
		if headers == "" {
			path = "/v1/agents/" + strings.Repeat("y", 1<<20)
		}
		c := n.dial(t)
		go io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n"+headers+"\r\n")
		if got := c.answer(t, "GET"); got.status != 431 || !got.close {
			t.Errorf("%s: %d", name, got.status)
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	n := serve(t, working())
	n.open.Add(maxConns)
	for range 3 {
		n.dial(t).closed(t)
	}
	eventually(t, "the closed ones are no longer counted", func() bool { return n.open.Load() == maxConns })
	n.open.Add(-maxConns)
	c := n.dial(t)
	c.send(t, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if got := c.answer(t, "GET"); got.status != 200 {
		t.Errorf("got %d", got.status)
	}
}

// The same over a real network: a stream, a refused body, the stop.
func TestServeOverTCP(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := working()
	fake.events.watch = func(_ *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
		if err := s.Send(&musterv1.Event{Id: "e.1", Kind: "agent"}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
	s := service(t, fake)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/v1/events", ln.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer a")
	res, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for _, want := range []string{"retry: 1000\n", "\n", "id: e.1\n", "event: agent\n"} {
		if got, err := in.ReadString('\n'); got != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}

	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := &client{conn, bufio.NewReader(conn)}
	go io.WriteString(c, postHead+"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n"+strings.Repeat("x", 2<<20))
	c.answer(t, "POST").want(t, 413, "BODY_TOO_LARGE")

	start := time.Now()
	stop()
	if err := <-ended; err != nil || time.Since(start) > 2*time.Second {
		t.Errorf("Serve: %v after %v", err, time.Since(start))
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
}
