package bus_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestMessagesGoBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := bustest.NewNet()
		ctx, cancel := context.WithCancel(t.Context())
		up, down := bus.NewMux(), bus.NewMux()
		bus.Handle(up, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Heartbeat) error {
			return p.Reply(env, &musterv1.HeartbeatAck{SequenceNum: m.SequenceNum})
		})
		got := make(chan *musterv1.Envelope, 1)
		bus.Handle(down, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.HeartbeatAck) error {
			if m.SequenceNum != 7 {
				t.Errorf("sequence %d, want 7", m.SequenceNum)
			}
			got <- env
			return nil
		})
		down.Up = func(p *bus.Peer) {
			f, err := bus.Seal(&musterv1.Envelope{Id: "x"}, &musterv1.Heartbeat{SequenceNum: 7})
			if err != nil {
				t.Error(err)
			}
			if err := p.SendFrames(f); err != nil {
				t.Error(err)
			}
		}
		var done sync.WaitGroup
		done.Go(func() { bus.NewRouter(bus.Config{Log: testLog(t)}, up).Serve(ctx, net, bus.Null()) })
		done.Go(func() {
			bus.NewDealer(bus.Config{Log: testLog(t)}, down, []string{"mem"}, bus.Null(), net.Dial).Run(ctx)
		})
		select {
		case env := <-got:
			if env.InReplyTo != "x" {
				t.Errorf("in_reply_to %q, want x", env.InReplyTo)
			}
		case <-time.After(time.Second):
			t.Error("no answer")
		}
		cancel()
		done.Wait()
	})
}
