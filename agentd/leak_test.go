package agentd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent on a real link, with a router that keeps its end open: when the agent
// ends, so does the link, and nothing is left in the bubble.
func TestAgentAndItsLinkLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, mux := bustest.NewNet(), bus.NewMux()
		bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, _ *musterv1.Register) error {
			p.Promote()
			return p.Reply(env, &musterv1.Registered{SessionId: "s"})
		})
		a, err := New(Config{Dir: t.TempDir(), ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		own := bus.NewMux()
		a.Register(own)
		d := bus.NewDealer(bus.Config{}, own, []string{"mem://"}, bus.Null(), net.Dial)
		a.Bind(d)
		ctx, cancel := context.WithCancel(t.Context())
		serving, stop := context.WithCancel(t.Context())
		var agent, router errgroup.Group
		router.Go(func() error { return bus.NewRouter(bus.Config{}, mux).Serve(serving, net, bus.Null()) })
		agent.Go(func() error { return a.Run(ctx) })
		agent.Go(func() error { return d.Run(ctx) })
		time.Sleep(5 * time.Second)
		start := time.Now()
		cancel()
		if err := agent.Wait(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("an idle agent took %v to end", took)
		}
		stop()
		if err := router.Wait(); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}
