package bus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
)

// dealAt runs a dealer at s until the test ends.
func dealAt(s *station, lines *lineCounter, secret bus.SecretKey, server bus.PublicKey) (ups *atomic.Int64) {
	ups = new(atomic.Int64)
	mux := bus.NewMux()
	mux.Up = func(*bus.Peer) { ups.Add(1) }
	endpoint := s.addr
	if endpoint == "" {
		endpoint = "mem"
	}
	d := bus.NewDealer(bus.Config{Log: lines.logger()}, mux, []string{endpoint}, bus.CurveClient(secret, server), s.dial)
	run(s.t, d.Run)
	return ups
}

// Five minutes of twenty agents that know the wrong server.
func TestC025WrongServerKeyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var routers, dealers lineCounter
		s := buildLoggedStation(t, &routers).guarded(everybody)
		s.serve(newNet(s))
		wrong, _ := newKeys(t)
		for range 20 {
			dealAt(s, &dealers, secretOf(t), wrong)
		}
		time.Sleep(5 * time.Minute)
		s.enter().served()
		if n := s.refused("server_key"); n < 20*40 || n > 20*120 {
			t.Errorf("%v attempts, want 40 to 120 of each", n)
		}
		if n := routers.count(); n < 4 || n > 6 || !strings.Contains(routers.last(), "another server key") {
			t.Errorf("%d lines of the router, want one a minute: %s", n, routers.last())
		}
		if n := dealers.count(); n < 20*4 || n > 20*6 || !strings.Contains(dealers.last(), "perhaps the server has another key than "+wrong.String()) {
			t.Errorf("%d lines of the dealers, want one a minute of each: %s", n, dealers.last())
		}
	})
}

func TestC025NothingLeaks(t *testing.T) {
	s := newTCPCurveStation(t, bus.Config{}, everybody)
	good := s.enter()
	wrong, _ := newKeys(t)
	var lines lineCounter
	var dealers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 20 {
		d := bus.NewDealer(bus.Config{Log: lines.logger()}, bus.NewMux(), []string{s.addr}, bus.CurveClient(secretOf(t), wrong), nil)
		dealers.Go(func() { d.Run(ctx) })
	}
	until(t, "20 refusals", func() bool { return s.refused("server_key") >= 20 })
	files, memory := openFiles(t), held()
	until(t, "60 refusals", func() bool { return s.refused("server_key") >= 60 })
	if grown := held() - memory; grown > 2<<20 {
		t.Errorf("took %d KiB of memory", grown>>10)
	}
	if n := openFiles(t); n > files+2*20 { // each dealer may be at it
		t.Errorf("%d open files, there were %d", n, files)
	}
	cancel()
	dealers.Wait()
	memory = held()
	for range 1000 {
		hello := append([]byte("\x05HELLO\x01\x00"), make([]byte, 192)...)
		rand.Read(hello[80:])
		hello[111] &= 0x7f
		s.knock(append(curveGreeting(t), frame(4, hello)...)).closed(2 * time.Second)
	}
	if grown := held() - memory; grown > 10<<20 { // the test itself keeps each connection
		t.Errorf("1,000 HELLOs took %d KiB of memory", grown>>10)
	}
	good.served()
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// door lets in whom it was told.
type door struct {
	mu   sync.Mutex
	open map[string]string // identity by key
	seen []bus.Candidate
}

func (d *door) authorize(c bus.Candidate) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, c)
	if id := d.open[c.Key]; id != "" {
		return id, nil
	}
	return "", errors.New("it waits for approval")
}

func (d *door) set(key bus.PublicKey, identity string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = map[string]string{key.String(): identity}
}

func TestC028KeysChangeAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var door door
		var routers, dealers lineCounter
		s := buildLoggedStation(t, &routers).guarded(door.authorize)
		s.serve(newNet(s))
		public, secret := newKeys(t)
		ups := dealAt(s, &dealers, secret, s.server)
		time.Sleep(time.Minute)
		if ups.Load() != 0 || len(s.peers()) != 0 || s.refused("unauthorized") < 4 {
			t.Fatalf("%d links before the key is approved", ups.Load())
		}
		if !strings.Contains(routers.last(), public.String()) || !strings.Contains(routers.last(), "waits for approval") {
			t.Errorf("the router says %s", routers.last())
		}
		if !strings.Contains(dealers.last(), "perhaps our key is not approved there: "+public.String()) {
			t.Errorf("the dealer says %s", dealers.last())
		}
		door.set(public, "web-1")
		time.Sleep(31 * time.Second) // one back-off at its longest
		if ups.Load() != 1 || len(s.peers()) != 1 {
			t.Fatal("not in within one back-off")
		}
		p := s.peers()[0]
		if p.Identity() != "web-1" || p.Key() != public.String() {
			t.Errorf("it is %q with %q", p.Identity(), p.Key())
		}
		if c := door.seen[0]; c.Key != public.String() || c.Public != public || c.Addr == nil || c.Identity != "" {
			t.Errorf("asked about %+v", c)
		}

		door.set(bus.PublicKey{}, "")
		refused := s.refused("unauthorized")
		p.Close(errors.New("revoked"))
		time.Sleep(2 * time.Minute)
		if len(s.peers()) != 1 || s.refused("unauthorized") == refused {
			t.Error("a revoked key came in again, or did not try")
		}
		door.set(public, "web-1")
		time.Sleep(31 * time.Second)
		if len(s.peers()) != 2 {
			t.Error("approved again, but not in")
		}
	})
}

// A refused peer gets no ERROR: by RFC 26 it must not come again after one.
func TestC028RefusedWithoutAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{}).guarded(new(door).authorize)
		s.serve(newNet(s))
		h := s.knockSealed(secretOf(t))
		h.send(frame(4, h.initiate()))
		if _, b, err := h.frame(); err == nil {
			t.Errorf("answered %q", b)
		}
	})
}

// An ERROR may come from anybody on the way: the dealer tries again.
func TestC028ErrorIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lineCounter
		s := buildStation(t, bus.Config{}).guarded(everybody)
		net := newNet(s)
		_, secret := newKeys(t)
		ups := dealAt(s, &lines, secret, s.server)
		for range 3 {
			nc, err := net.Accept()
			if err != nil {
				t.Fatal(err)
			}
			b := curveGreeting(t)
			b[32] = 1
			nc.Write(b)
			io.ReadFull(nc, make([]byte, 64+2+200))
			nc.Write(command("ERROR", append([]byte{3}, "400"...)...))
			nc.Close()
		}
		s.serve(net)
		time.Sleep(31 * time.Second)
		if ups.Load() != 1 {
			t.Error("it gave up")
		}
		if !strings.Contains(fmt.Sprint(lines.lines), "400") {
			t.Errorf("log %v, want the server's reason", lines.lines)
		}
	})
}
