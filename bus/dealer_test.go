package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// dials notes when and where a dealer dials.
type dials struct {
	mu        sync.Mutex
	times     []time.Time
	endpoints []string
}

func (d *dials) through(dial bus.Dialer) bus.Dialer {
	return func(ctx context.Context, endpoint string) (net.Conn, error) {
		d.mu.Lock()
		d.times = append(d.times, time.Now())
		d.endpoints = append(d.endpoints, endpoint)
		d.mu.Unlock()
		return dial(ctx, endpoint)
	}
}

// gaps returns the times between dials.
func (d *dials) gaps() (gaps []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.times[1:] {
		gaps = append(gaps, d.times[i+1].Sub(d.times[i]))
	}
	return gaps
}

func (d *dials) last() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.times[len(d.times)-1]
}

func nobody(context.Context, string) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}

func TestDealerNeverGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{})
		network := newNet(s)
		s.serve(network)
		start := time.Now()
		var log dials
		var lines lineCounter
		dealer := bus.NewDealer(bus.Config{Log: lines.logger()}, bus.NewMux(), []string{"mem"}, bus.Null(),
			log.through(func(ctx context.Context, endpoint string) (net.Conn, error) {
				if time.Since(start) < 10*time.Minute {
					return nobody(ctx, endpoint)
				}
				return network.Dial(ctx, endpoint)
			}))
		run(t, dealer.Run)
		time.Sleep(10*time.Minute + 10*time.Second)
		synctest.Wait()
		if len(s.peers()) != 1 {
			t.Error("not connected 10s after the router came")
		}
		gaps := log.gaps()
		if n := len(gaps); n < 90 || n > 220 {
			t.Errorf("%d dials in ten minutes", n)
		}
		if longest := slices.Max(gaps); longest > 8*time.Second || longest < 5*time.Second {
			t.Errorf("longest pause %v, want up to 8s", longest)
		}
		if early := gaps[0] + gaps[1] + gaps[2]; early > 700*time.Millisecond {
			t.Errorf("first three pauses %v, want at most 100ms + 200ms + 400ms", gaps[:3])
		}
		if lines.count() > len(gaps)+1 {
			t.Errorf("%d lines for %d dials", lines.count(), len(gaps))
		}
	})
}

func TestDealersDoNotDialInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs [20]dials
		for i := range logs {
			d := bus.NewDealer(bus.Config{}, bus.NewMux(), []string{"mem"}, bus.Null(), logs[i].through(nobody))
			run(t, d.Run)
		}
		time.Sleep(2 * time.Minute)
		seen := map[time.Time]bool{}
		for i := range logs {
			last := logs[i].last()
			if seen[last] {
				t.Error("two dealers dialed at one moment")
			}
			seen[last] = true
		}
	})
}

func TestDealerTriesAllEndpointsInItsOwnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		endpoints := []string{"a", "b", "c", "d"}
		orders := map[string]bool{}
		for range 40 {
			var log dials
			ctx, cancel := context.WithCancel(t.Context())
			d := bus.NewDealer(bus.Config{}, bus.NewMux(), endpoints, bus.Null(), log.through(nobody))
			go d.Run(ctx)
			time.Sleep(time.Minute)
			cancel()
			synctest.Wait()
			first := log.endpoints[:4]
			orders[fmt.Sprint(first)] = true
			slices.Sort(first)
			if !slices.Equal(first, endpoints) {
				t.Fatalf("first four dials went to %v", first)
			}
		}
		if len(orders) < 5 {
			t.Errorf("only the orders %v", orders)
		}
	})
}

// breaking runs a dealer whose links break after life, times times.
func breaking(t *testing.T, life time.Duration, times int, promote bool, each func(*bus.Dealer)) []time.Duration {
	s := newStation(t, bus.Config{})
	var log dials
	mux := bus.NewMux()
	d := bus.NewDealer(bus.Config{}, mux, []string{"mem"}, bus.Null(), log.through(s.dial))
	ups := make(chan *bus.Peer)
	var last time.Time
	var gaps []time.Duration
	mux.Up = func(p *bus.Peer) { ups <- p }
	run(t, d.Run)
	for i := range times {
		p := <-ups
		if i > 0 {
			gaps = append(gaps, time.Since(last))
		}
		if promote {
			p.Promote()
		}
		if each != nil {
			each(d)
		}
		time.Sleep(life)
		s.peers()[i].Close(nil)
		<-p.Done()
		last = time.Now()
	}
	go func() { // lets the last one go
		for range ups {
		}
	}()
	t.Cleanup(func() { close(ups) })
	return gaps
}

func TestBackoffIsResetByAGoodLinkOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		life    time.Duration
		promote bool
		reset   bool
	}{
		{"long life", 31 * time.Second, true, true},
		{"long life, never promoted", 31 * time.Second, false, false},
		{"short life", 29 * time.Second, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gaps := breaking(t, c.life, 40, c.promote, nil)
				longest := slices.Max(gaps)
				if c.reset && longest > 100*time.Millisecond {
					t.Errorf("longest pause %v, want at most 100ms", longest)
				}
				if !c.reset && longest < 5*time.Second {
					t.Errorf("longest pause %v, want it to grow", longest)
				}
			})
		})
	}
}

func TestReconnectWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gaps := breaking(t, time.Minute, 40, true, func(d *bus.Dealer) { d.SetReconnectWindow(20 * time.Second) })
		slices.Sort(gaps)
		if gaps[len(gaps)-1] > 20*time.Second || gaps[len(gaps)/2] < 3*time.Second || gaps[len(gaps)/2] > 17*time.Second {
			t.Errorf("pauses %v, want them spread over 20s", gaps)
		}
	})
}

func TestHoldOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gaps := breaking(t, 40*time.Second, 5, true, func(d *bus.Dealer) { d.HoldOff(2 * time.Minute) })
		for _, gap := range gaps {
			if gap < 80*time.Second || gap > 81*time.Second {
				t.Errorf("pause %v, want 80s and a little jitter", gap)
			}
		}
	})
}

// Whenever it is told to, a dealer ends at once and leaves nothing behind.
func TestNothingOutlivesRun(t *testing.T) {
	for _, c := range []struct {
		name string
		far  func(nc net.Conn) // what the other side does
		dial bus.Dialer        // instead of it
	}{
		{name: "while it dials", dial: func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{name: "while it waits", dial: nobody},
		{name: "in the handshake", far: func(nc net.Conn) {}},
		{name: "in a half handshake", far: func(nc net.Conn) { nc.Write(greeting(t)) }},
		{name: "on a live link", far: func(nc net.Conn) { nc.Write(routerHello(t)) }},
		{name: "after the link broke", far: func(nc net.Conn) { nc.Write(routerHello(t)); nc.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := bustest.NewNet()
				dial := network.Dial
				if c.dial != nil {
					dial = c.dial
				}
				ctx, cancel := context.WithCancel(t.Context())
				mux := bus.NewMux()
				mux.Up = func(p *bus.Peer) { p.Send(&musterv1.Heartbeat{}) }
				ended := make(chan error)
				go func() { ended <- bus.NewDealer(bus.Config{}, mux, []string{"mem"}, bus.Null(), dial).Run(ctx) }()
				if c.far != nil {
					nc, err := network.Accept()
					if err != nil {
						t.Fatal(err)
					}
					defer nc.Close()
					c.far(nc)
				}
				synctest.Wait()
				start := time.Now()
				cancel()
				if err := <-ended; err != nil || time.Since(start) > 0 {
					t.Errorf("ended with %v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// routerHello is what a router sends in the handshake.
func routerHello(t testing.TB) []byte {
	return append(greeting(t), command("READY", append(property("Socket-Type", "ROUTER"), property("Identity", "")...)...)...)
}

func TestDealerRefusesStrangeRouters(t *testing.T) {
	for _, c := range []struct {
		name, want string
		hello      []byte
	}{
		{"a dealer", "socket_type", stream(t, "good-null-dealer")},
		{"a web server", "greeting", []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		{"another mechanism", "mechanism", stream(t, "mech-PLAIN")},
		{"an error", "handshake_error", append(greeting(t), command("ERROR", 3, 'b', 'a', 'd')...)},
		{"nothing", "handshake_timeout", nil},
		{"2^62 bytes", "frame_size", append(routerHello(t), 2, 0x40, 0, 0, 0, 0, 0, 0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &station{t: t, reg: prometheus.NewRegistry()}
				network := bustest.NewNet()
				d := bus.NewDealer(bus.Config{Metrics: s.reg}, bus.NewMux(), []string{"mem"}, bus.Null(), network.Dial)
				run(t, d.Run)
				nc, err := network.Accept()
				if err != nil {
					t.Fatal(err)
				}
				nc.Write(c.hello)
				time.Sleep(6 * time.Second)
				nc.Close()
				synctest.Wait()
				if s.refused(c.want) != 1 {
					t.Errorf("not counted as %q", c.want)
				}
			})
		})
	}
}

// The router cuts who sends too much before it is registered, so the dealer
// does not even send it.
func TestDealerKnowsTheLimitOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t, bus.Config{})
		mux := bus.NewMux()
		ups := make(chan *bus.Peer, 1)
		mux.Up = func(p *bus.Peer) { ups <- p }
		run(t, bus.NewDealer(bus.Config{}, mux, []string{"mem"}, bus.Null(), s.dial).Run)
		p := <-ups
		large := &musterv1.OutputChunk{Data: make([]byte, 65<<10)}
		if err := p.Send(large); err == nil {
			t.Error("sent before Promote")
		}
		p.Promote()
		if err := p.Send(large); err != nil {
			t.Error(err)
		}
	})
}

func TestDealerNeedsAnEndpoint(t *testing.T) {
	if err := bus.NewDealer(bus.Config{}, bus.NewMux(), nil, bus.Null(), nil).Run(t.Context()); err == nil {
		t.Error("no error")
	}
}
