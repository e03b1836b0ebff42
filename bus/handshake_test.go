package bus_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestC001NoZeroMQAtAll(t *testing.T) {
	s := newTCPStation(t, bus.Config{Handshake: 500 * time.Millisecond})
	good := s.enter()
	noise := make([]byte, 64)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	noise[0] = 0x17
	openFiles := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	before := openFiles()
	kinds := [][]byte{
		stream(t, "bad-http"), noise, stream(t, "bad-tls-hello"), {0}, stream(t, "bad-header-byte"),
		stream(t, "bad-footer-byte"), bytes.Repeat([]byte{0xFF}, 1<<20), greeting(t)[:40],
	}
	var knocks []*raw
	for i := range 200 {
		nc, err := s.dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		r := &raw{t: t, Conn: nc}
		go r.send(kinds[i%len(kinds)]) // the megabyte may not be taken whole
		if i%2 == 0 {
			nc.(*net.TCPConn).CloseWrite()
		}
		knocks = append(knocks, r)
	}
	good.served()
	for _, r := range knocks {
		r.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := new(bytes.Buffer).ReadFrom(r); os.IsTimeout(err) {
			t.Error("still open")
		}
		r.Close()
	}
	good.served()
	until(t, "all files are closed", func() bool { return openFiles() <= before+5 })
	if n := s.heardOf(&musterv1.Register{}); n != 0 {
		t.Errorf("%d registrations", n)
	}
}

func TestC002SilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{MaxHandshaking: 30})
		start := time.Now()
		var silent []*raw
		for range 20 {
			silent = append(silent, s.knock(nil))
		}
		for range 50 {
			s.enter().served()
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("good peers waited %v behind silent ones", took)
		}
		for _, r := range silent {
			r.closed(6 * time.Second)
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("silent peers were closed after %v, want 5s", took)
		}
		synctest.Wait()
		if n := s.refused("handshake_timeout"); n != 20 {
			t.Errorf("%v counted, want 20", n)
		}
	})
}

// More silent peers than there are places: each keeps his for a fifth of the
// time only, so the door opens again and again.
func TestC002CrowdOfSilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{MaxHandshaking: 10})
		start := time.Now()
		for range 25 {
			s.knock(nil)
		}
		s.enter().served()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("served after %v", took)
		}
		if s.refused("handshake_crowded") < 10 {
			t.Errorf("%v were sent away", s.refused("handshake_crowded"))
		}
	})
}

func TestC003DripFeed(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		good := s.enter()
		hello := stream(t, "good-null-dealer")
		if s.sec != nil {
			_, secret := newKeys(t)
			hello = append(curveGreeting(t), frame(4, handshake{&raw{t: t}, curve.NewClient(secret, s.server).Handshake()}.hello())...)
		}
		var wg sync.WaitGroup
		for range 200 {
			r := s.knock(nil)
			start := time.Now()
			wg.Go(func() {
				for i := range hello {
					if _, err := r.Write(hello[i : i+1]); err != nil {
						break
					}
					time.Sleep(time.Second)
				}
				if took := time.Since(start); took > 7*time.Second {
					t.Errorf("closed after %v", took)
				}
			})
		}
		for range 10 {
			asked := time.Now()
			good.served()
			if took := time.Since(asked); took > time.Second {
				t.Errorf("a good peer waited %v", took)
			}
			time.Sleep(time.Second)
		}
		wg.Wait()
		if n := s.refused("handshake_timeout"); n != 200 {
			t.Errorf("%v counted, want 200", n)
		}
	})
}

// stopped is a listener whose connections are looked at only after a while, as
// if the process had been stopped and continued.
type stopped struct {
	net.Listener
	pause time.Duration
}

type stoppedConn struct {
	net.Conn
	once  sync.Once
	pause time.Duration
}

func (l stopped) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stoppedConn{Conn: nc, pause: l.pause}, nil
}

func (c *stoppedConn) Write(b []byte) (int, error) {
	c.once.Do(func() { time.Sleep(c.pause) })
	return c.Conn.Write(b)
}

func TestC004DeadlineAndBufferedBytes(t *testing.T) {
	for _, c := range []struct {
		name   string
		sent   int // bytes that had arrived
		served bool
	}{{"whole", 114, true}, {"half", 80, false}, {"nothing", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := buildStation(t, bus.Config{})
				net := newNet(s)
				s.serve(stopped{net, 10 * time.Second})
				r := s.knock(stream(t, "good-null-dealer")[:c.sent])
				if c.served {
					r.welcome()
					r.served()
				} else {
					r.closed(11 * time.Second)
				}
			})
		})
	}
}

func TestC005OldVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		good := s.enter()
		registration := sealed(t, &musterv1.Register{AgentId: "a"})
		for range 100 {
			for _, name := range []string{"old-1-0-unversioned", "old-2-0"} {
				s.knock(append(stream(t, name), registration...)).closed(time.Second)
			}
		}
		if n := s.heardOf(&musterv1.Register{}); n != 0 {
			t.Errorf("%d registrations were processed", n)
		}
		good.served()
	})
}

func TestC006NewerVersionsAndDirtyPadding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		for _, version := range [][2]byte{{3, 0}, {3, 1}, {3, 9}, {4, 0}, {255, 255}} {
			hello := stream(t, "good-null-dealer")
			copy(hello[10:], version[:])
			for i := 1; i < 9; i++ {
				hello[i] = byte(rand.Uint32())
			}
			for i := 33; i < 64; i++ {
				hello[i] = byte(rand.Uint32())
			}
			r := s.knock(hello)
			r.welcome()
			r.served()
		}
	})
}

func TestC008HugeOrDoubtfulMetadata(t *testing.T) {
	socket := property("Socket-Type", "DEALER")
	many := slices.Clone(socket)
	for range 100_000 {
		many = append(many, property("X-p", "value")...)
	}
	for _, c := range []struct {
		name string
		meta []byte
		want string
	}{
		{"value of 64 MiB", append(socket, property("X-p", strings.Repeat("v", 64<<20))...), "handshake_size"},
		{"100,000 properties", many, "handshake_size"},
		{"Socket-Type twice", slices.Concat(socket, property("Socket-Type", "PUB")), "metadata"},
		{"socket-type in other letters", slices.Concat(socket, property("socket-type", "DEALER")), "metadata"},
		{"any property twice", slices.Concat(socket, property("X-p", "1"), property("x-P", "1")), "metadata"},
		{"cut in a name", slices.Concat(socket, []byte{9, 'X'}), "metadata"},
		{"cut in a length", slices.Concat(socket, []byte{1, 'X', 0, 0}), "metadata"},
		{"cut in a value", slices.Concat(socket, []byte{1, 'X', 0, 0, 0, 9, 'v'}), "metadata"},
		{"value of 4 GiB", slices.Concat(socket, []byte{1, 'X', 255, 255, 255, 255}), "metadata"},
		{"property without a name", slices.Concat(socket, property("", "v")), "metadata"},
		{"no metadata", nil, "socket_type"},
		{"REQ", property("Socket-Type", "REQ"), "socket_type"}, // C012: it would send an empty frame first
		{"ROUTER", property("Socket-Type", "ROUTER"), "socket_type"},
		{"made-up word", property("Socket-Type", "DEALER2"), "socket_type"},
		{"in capitals", property("SOCKET-TYPE", "DEALER"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation(t, bus.Config{})
				ready := command("READY", c.meta...)
				grown := allocated(func() {
					r := s.knock(greeting(t))
					if c.want == "" {
						r.send(ready)
						r.welcome()
						r.served()
						return
					}
					go r.send(ready)
					r.closed(6 * time.Second)
				})
				synctest.Wait()
				if c.want != "" && s.refused(c.want) == 0 {
					t.Errorf("not counted as %q", c.want)
				}
				if grown > 10<<20 {
					t.Errorf("took %d bytes of memory", grown)
				}
			})
		})
	}
}

func TestC009OversizedBeforeTheHandshakeEnds(t *testing.T) {
	inBoth(t, bus.Config{}, func(t *testing.T, s *station) {
		hello := greeting(t)
		if s.sec != nil {
			hello = curveGreeting(t)
		}
		grown := allocated(func() {
			for _, size := range []byte{62, 40, 34, 31, 13} {
				header := []byte{6, 0, 0, 0, 0, 0, 0, 0, 0}
				header[8-size/8] = 1 << (size % 8)
				r := s.knock(append(hello, header...))
				start := time.Now()
				r.closed(time.Second)
				if took := time.Since(start); took > 0 {
					t.Errorf("2^%d: closed after %v, want at once", size, took)
				}
			}
		})
		if grown > 1<<20 {
			t.Errorf("took %d bytes of memory", grown)
		}
		synctest.Wait()
		if n := s.refused("handshake_size"); n != 5 {
			t.Errorf("%v counted, want 5", n)
		}
	})
}

func TestC019IdentityIsOnlyAHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		var empty []*raw
		for range 2 {
			r := s.knock(stream(t, "identity-empty"))
			r.welcome()
			empty = append(empty, r)
			synctest.Wait()
		}
		peers := s.peers()
		if len(peers) != 2 || peers[0].Identity() != "" || peers[1].Identity() != "" {
			t.Fatalf("peers %v", peers)
		}
		// Two peers of one identity never mix.
		if err := peers[1].Send(&musterv1.HeartbeatAck{SequenceNum: 2}); err != nil {
			t.Fatal(err)
		}
		if err := peers[0].Send(&musterv1.HeartbeatAck{SequenceNum: 1}); err != nil {
			t.Fatal(err)
		}
		for i, r := range empty {
			var ack musterv1.HeartbeatAck
			r.receive(&ack)
			if ack.SequenceNum != uint64(i+1) {
				t.Errorf("peer %d got %d", i, ack.SequenceNum)
			}
		}
		s.knock(stream(t, "identity-newline-esc")).welcome()
		synctest.Wait()
		if id := s.peers()[2].Identity(); !strings.ContainsAny(id, "\n\x1b") {
			t.Errorf("identity %q", id)
		}
	})
}

// allocated returns the bytes that fn and its goroutines allocated.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// held returns the bytes that are in use.
func held() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestServeNeedsSecurity(t *testing.T) {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.NewRouter(bus.Config{}, bus.NewMux()).Serve(context.Background(), ln, nil); err == nil {
		t.Error("served without security")
	}
	if err := bus.NewDealer(bus.Config{}, bus.NewMux(), []string{"tcp://127.0.0.1:1"}, nil, nil).Run(context.Background()); err == nil {
		t.Error("dialed without security")
	}
}
