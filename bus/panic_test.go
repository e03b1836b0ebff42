package bus_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestPanicEndsItsLinkOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lineCounter
		s := buildLoggedStation(t, &lines)
		bus.Handle(s.mux, func(*bus.Peer, *musterv1.Envelope, *musterv1.Command) error { panic("oops") })
		up, down := s.mux.Up, s.mux.Down
		s.mux.Up = func(p *bus.Peer) {
			up(p)
			if p.Identity() == "bad-up" {
				panic("up")
			}
		}
		s.mux.Down = func(p *bus.Peer, err error) {
			down(p, err)
			panic("down")
		}
		s.serve(newNet(s))
		good := s.enter()
		bad := s.enter()
		bad.send(sealed(t, &musterv1.Command{}))
		bad.closed(time.Second)
		other := s.knock(append(greeting(t), command("READY", append(property("Socket-Type", "DEALER"), property("Identity", "bad-up")...)...)...))
		other.closed(time.Second)
		synctest.Wait()
		good.served()
		if s.refused("panic") != 4 || len(s.ends()) != 2 {
			t.Errorf("%v panics counted, links ended %v", s.refused("panic"), s.ends())
		}
		if text := strings.Join(lines.lines, ""); !strings.Contains(text, "oops") || !strings.Contains(text, "panic_test.go") {
			t.Errorf("log %s, want the panic and the stack", text)
		}
	})
}

func TestPanicInAuthorize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := buildStation(t, bus.Config{}).guarded(func(c bus.Candidate) (string, error) {
			if c.Identity == "" {
				panic("nameless")
			}
			return c.Identity, nil
		})
		s.serve(newNet(s))
		h := s.knockSealed(secretOf(t))
		h.send(frame(4, h.initiate()))
		h.closed(time.Second)
		synctest.Wait()
		if s.refused("panic") != 1 || s.value("muster_bus_peers", "") != 0 {
			t.Error("not refused")
		}
	})
}
