package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// 20 peers that say nothing, one that never reads, and 20 at a time that claim
// huge frames: 50 good agents do not notice, and the coordinator does not grow.
func TestC002C010C020HostilePeersHarmNobody(t *testing.T) {
	const good, each = 50, 20
	t.Setenv("GOGC", "25") // what the collector lets grow is not what is asked here
	f := startFleet(t)
	ids := make([]string, good)
	silent := holdSilent(t, f, each) // C002: they are there before anybody else
	for i := range ids {
		ids[i] = fmt.Sprintf("good-%02d", i)
		f.startAgent(ids[i])
	}
	start := time.Now()
	f.waitOnline(ids...)
	t.Logf("%d agents online %v after the last was started", good, time.Since(start))
	for range 50 {
		f.pingAll(ids) // so that what grows with a fleet at work has grown, such as the events that are kept
	}
	before := f.coordinator.residentKiB()

	stuck := neverReads(t, f)
	ctx, stop := context.WithCancel(t.Context())
	var cuts atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for i := range each {
		g.Go(func() error { return claimHugeFrames(ctx, f, i, &cuts) })
	}
	slowest := time.Duration(0)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); time.Since(start) < 10*time.Second; <-tick.C {
		slowest = max(slowest, f.pingAll(ids))
	}
	grown := f.coordinator.residentKiB() - before
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("slowest ping %v; %d huge frames cut; memory grew by %d KiB", slowest, cuts.Load(), grown)
	if slowest > time.Second {
		t.Errorf("the slowest ping took %v", slowest)
	}
	if grown > 10<<10 {
		t.Errorf("memory grew by %d KiB", grown)
	}
	if cuts.Load() < each {
		t.Errorf("only %d huge frames were cut", cuts.Load())
	}
	for i, p := range silent {
		if !p.cutWithin(15 * time.Second) {
			t.Errorf("silent peer %d is still connected", i)
		}
	}
	eventually(t, 30*time.Second, "the peer that never reads is cut", func() bool { return f.statuses()["never-reads"] != "ONLINE" })
	for _, id := range stuck {
		if got := f.targets(id)["never-reads"]; got.final() {
			t.Fatalf("a command for the peer that never reads: %+v", got)
		}
	}
	if !f.coordinator.running() {
		t.Error("the coordinator died")
	}
	f.waitOnline(ids...)
}

// holdSilent connects peers that send nothing.
func holdSilent(t *testing.T, f *fleet, n int) (peers []rawPeer) {
	t.Helper()
	for range n {
		p, err := dialRaw(f.endpoint, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		peers = append(peers, p)
	}
	return peers
}

// neverReads registers an agent that does not take what it is sent, and queues
// more for it than the kernel's buffers hold.
func neverReads(t *testing.T, f *fleet) (commands []string) {
	t.Helper()
	p, err := dialRaw(f.endpoint, 2048)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.handshake(); err != nil {
		t.Fatal(err)
	}
	if err := p.register("never-reads"); err != nil {
		t.Fatal(err)
	}
	f.waitOnline("never-reads")
	for range 64 {
		commands = append(commands, f.submit(commandBody([]string{"never-reads"}, "true", strings.Repeat("x", 8<<10))))
	}
	return commands
}

// claimHugeFrames connects as an agent and announces a frame that nobody could
// hold, again and again.
func claimHugeFrames(ctx context.Context, f *fleet, i int, cuts *atomic.Int64) error {
	sizes := []uint64{1 << 62, 1 << 63, 1<<63 - 1, 1 << 48, 1 << 40, 1 << 34, 8<<20 + 1}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for round := 0; ; round++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		size := sizes[(i+round)%len(sizes)]
		if err := claimOnce(f, i, size); err != nil {
			return fmt.Errorf("a frame of %d bytes: %w", size, err)
		}
		cuts.Add(1)
	}
}

func claimOnce(f *fleet, i int, size uint64) error {
	p, err := dialRaw(f.endpoint, 0)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.handshake(); err != nil {
		return err
	}
	if err := p.register(fmt.Sprintf("claims-%02d", i)); err != nil {
		return err
	}
	if err := p.claim(size); err != nil {
		return err
	}
	if !p.cutWithin(5 * time.Second) {
		return fmt.Errorf("not cut")
	}
	return nil
}

// pingAll pings every agent and returns when the last has answered; how long
// that took is what it returns.
func (f *fleet) pingAll(ids []string) time.Duration {
	f.t.Helper()
	body, err := json.Marshal(map[string]any{"type": "ping", "target": map[string]any{"agents": ids}})
	if err != nil {
		f.t.Fatal(err)
	}
	start := time.Now()
	var cmd command
	f.do("POST", "/v1/commands", string(body), http.StatusAccepted, &cmd)
	f.do("GET", "/v1/commands/"+cmd.ID+"?wait=10s", "", http.StatusOK, &cmd)
	took := time.Since(start)
	if cmd.State != "DONE" || cmd.Counts["succeeded"] != len(ids) {
		f.t.Fatalf("ping: after %v %+v", took, cmd)
	}
	return took
}
