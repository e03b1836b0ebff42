package northbound

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const eventsHead = "GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n\r\n"

// watching starts an event stream and reads up to its first line.
func (n *network) watching(t *testing.T, request string) (*client, *lines) {
	t.Helper()
	c := n.dial(t)
	c.send(t, request)
	res, err := http.ReadResponse(c.in, nil)
	if err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("got %+v, %v", res, err)
	}
	l := &lines{body: res.Body}
	l.want(t, "retry: 1000\n\n")
	return c, l
}

// lines reads a stream piece by piece.
type lines struct{ body io.ReadCloser }

func (l *lines) want(t *testing.T, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(l.body, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v\nwant %q", got, err, text)
	}
}

// script is a coordinator that sends what feed gives it.
func script(feed chan *musterv1.Event, watching *atomic.Int64) *coordinator {
	fake := working()
	fake.events.watch = func(_ *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
		watching.Add(1)
		defer watching.Add(-1)
		if err := s.SendHeader(nil); err != nil {
			return err
		}
		for {
			select {
			case e, ok := <-feed:
				if !ok {
					return status.Error(codes.Unavailable, "stopping")
				}
				if err := s.Send(e); err != nil {
					return err
				}
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	}
	return fake
}

func TestEventsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, watching := make(chan *musterv1.Event), atomic.Int64{}
		n := serve(t, script(feed, &watching))
		start := time.Now()
		c, l := n.watching(t, eventsHead)
		if took := time.Since(start); took != 0 {
			t.Errorf("the first line came after %v", took)
		}
		feed <- &musterv1.Event{Id: "e.1", Kind: "agent", Agent: &musterv1.Agent{Id: "web-1"}}
		l.want(t, "id: e.1\nevent: agent\ndata: {\"id\":\"e.1\",\"kind\":\"agent\",\"agent\":{\"id\":\"web-1\"}}\n\n")
		feed <- &musterv1.Event{Id: "e.2", Kind: "target", Target: &musterv1.Target{Result: []byte("{\"a\":\r\n 1}")}}
		l.want(t, "id: e.2\nevent: target\ndata: {\"id\":\"e.2\",\"kind\":\"target\",\"target\":{\"result\":{\"a\":   1}}}\n\n")
		feed <- &musterv1.Event{Id: "e.3", Kind: "resync"}
		l.want(t, "id: e.3\nevent: resync\ndata: {\"id\":\"e.3\",\"kind\":\"resync\"}\n\n")

		// Ten idle minutes: comments, and then the next event.
		for range 40 {
			l.want(t, ": keep-alive\n\n")
		}
		if idle := time.Since(start); idle != 10*time.Minute {
			t.Errorf("40 keep-alives took %v", idle)
		}
		feed <- &musterv1.Event{Id: "e.4\ndata: x", Kind: "command"}
		l.want(t, "id: e.4 data: x\nevent: command\ndata: {\"id\":\"e.4\\ndata: x\",\"kind\":\"command\"}\n\n")

		// The coordinator goes: what came before is sent, then the stream ends.
		feed <- &musterv1.Event{Id: "e.5", Kind: "command"}
		close(feed)
		l.want(t, "id: e.5\nevent: command\ndata: {\"id\":\"e.5\",\"kind\":\"command\"}\n\n")
		if rest, err := io.ReadAll(l.body); err != nil || len(rest) > 0 {
			t.Errorf("then %q, %v", rest, err)
		}
		c.Close()
		synctest.Wait()
		if watching.Load() != 0 {
			t.Errorf("%d watches are left", watching.Load())
		}
	})
}

func TestC101LastEventIDIsHandedOn(t *testing.T) {
	fake := working()
	asked := make(chan *musterv1.WatchEventsRequest, 1)
	fake.events.watch = func(r *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
		asked <- r
		if r.GetAfter() == "e.7" {
			return s.Send(&musterv1.Event{Id: "e.8", Kind: "agent"})
		}
		return s.Send(&musterv1.Event{Id: "f.1", Kind: "resync"})
	}
	s := service(t, fake)
	for sent, want := range map[string]string{"e.7": "e.7", "garbage": "garbage", "\xff\xfe": "?", strings.Repeat("9", 5000): strings.Repeat("9", 5000)} {
		got := s.do(t, "GET", "/v1/events?kinds=agent,target", "", "Last-Event-ID: "+sent)
		r := <-asked
		if r.GetAfter() != want || fmt.Sprint(r.GetKinds()) != "[agent target]" {
			t.Errorf("%.20q: asked for %v", sent, r)
		}
		first := "event: resync"
		if sent == "e.7" {
			first = "id: e.8\nevent: agent"
		}
		if !strings.Contains(string(got.body), first) {
			t.Errorf("%.20q: got %q", sent, got.body)
		}
	}
}

// A refusal is an answer with its status, not a stream that ends.
func TestEventsRefused(t *testing.T) {
	fake := working()
	fake.events.watch = func(*musterv1.WatchEventsRequest, grpc.ServerStreamingServer[musterv1.Event]) error {
		return status.Error(codes.Unauthenticated, "unknown token")
	}
	s := service(t, fake)
	s.do(t, "GET", "/v1/events", "").want(t, 401, "UNAUTHENTICATED")
	fake.events.watch = func(*musterv1.WatchEventsRequest, grpc.ServerStreamingServer[musterv1.Event]) error { return nil }
	s.do(t, "GET", "/v1/events", "").want(t, 503, "STOPPING")
}

// A coordinator that does not say that it watches must not keep the client waiting.
func TestEventsStartWithoutAHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := working()
		fake.events.watch = func(_ *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
			<-s.Context().Done()
			return nil
		}
		n := serve(t, fake)
		start := time.Now()
		n.watching(t, eventsHead)
		if took := time.Since(start); took != openTimeout {
			t.Errorf("the first line came after %v", took)
		}
	})
}

// 20 clients that never read, one that is gone, 10 good ones, 1,000 events.
func TestC100ClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 1000
		go1 := make(chan struct{})
		var watching atomic.Int64
		fake := working()
		fake.events.watch = func(_ *musterv1.WatchEventsRequest, s grpc.ServerStreamingServer[musterv1.Event]) error {
			watching.Add(1)
			defer watching.Add(-1)
			if err := s.SendHeader(nil); err != nil {
				return err
			}
			<-go1
			for i := range events {
				if err := s.Send(&musterv1.Event{Id: fmt.Sprintf("e.%d", i), Kind: "agent", Agent: &musterv1.Agent{Id: strings.Repeat("x", 200)}}); err != nil {
					return err
				}
			}
			<-s.Context().Done()
			return nil
		}
		n := serve(t, fake)
		for range 20 {
			n.watching(t, eventsHead)
		}
		gone, _ := n.watching(t, eventsHead)
		done := make(chan error, 10)
		for range 10 {
			_, l := n.watching(t, eventsHead)
			go func() {
				seen := 0
				buf := make([]byte, 32<<10)
				for seen < events {
					k, err := l.body.Read(buf)
					if err != nil {
						done <- fmt.Errorf("after %d events: %w", seen, err)
						return
					}
					seen += strings.Count(string(buf[:k]), "\n\n")
				}
				done <- nil
			}()
		}
		start := time.Now()
		close(go1)
		gone.Close()
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("good clients had all events after %v", took)
		}
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		if watching.Load() != 10 {
			t.Errorf("%d watches after the write limit, want those of the 10 good clients", watching.Load())
		}
	})
}
