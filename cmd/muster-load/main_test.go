package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
	"github.com/musterhq/muster/cmd/internal/simagent/coordtest"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// run is the program with these arguments.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = newApp(&out, &errOut).RunContext(t.Context(), append([]string{"muster-load"}, args...))
	return out.String(), errOut.String(), err
}

// guestbook is a listener that notes where links come from.
type guestbook struct {
	net.Listener
	mu    sync.Mutex
	hosts map[string]int
}

func (g *guestbook) Accept() (net.Conn, error) {
	nc, err := g.Listener.Accept()
	if err == nil {
		host, _, _ := net.SplitHostPort(nc.RemoteAddr().String())
		g.mu.Lock()
		g.hosts[host]++
		g.mu.Unlock()
	}
	return nc, err
}

// startCoordinator runs one on a port of this machine until the test ends.
func startCoordinator(t *testing.T) (*coordtest.Coordinator, *guestbook) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := store.NewMem(coordinator.Spaces...)
	book := &guestbook{Listener: ln, hosts: map[string]int{}}
	c := coordtest.Start(t, s, t.TempDir(), book, coordinator.Config{})
	t.Cleanup(func() { c.Stop(); s.Close() })
	return c, book
}

// pad is a buffer that may be read while it is written.
type pad struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *pad) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *pad) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// eventually polls until ok, and fails the test when that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestLoadCountsWhatHappened(t *testing.T) {
	c, book := startCoordinator(t)
	ctx, interrupt := context.WithCancel(t.Context())
	var out bytes.Buffer
	var progress pad
	ended := make(chan error, 1)
	go func() {
		ended <- newApp(&out, &progress).RunContext(ctx, []string{"muster-load", "--coordinator", "tcp://" + book.Addr().String(),
			"--agents", "200", "--duration", "1h", "--tag", "zone=a", "--result-size", "300", "--output-size", "70000",
			"--fail", "5%", "--beat-interval", "100ms", "--progress", "-o", "json"})
	}()
	eventually(t, "200 agents are there", func() bool { return strings.Contains(progress.String(), "registered 200 of 200") })
	var failed uint32
	for range 3 {
		id := c.Submit(&musterv1.Command{})
		eventually(t, "the command is done", func() bool { return c.Command(id).State == musterv1.Command_DONE })
		counts := c.Command(id).Counts
		if counts.Succeeded+counts.Failed != 200 {
			t.Errorf("got %v", counts)
		}
		failed += counts.Failed
	}
	eventually(t, "the progress tells it", func() bool {
		return strings.Contains(progress.String(), "commands 600, answered 600, acked 600;")
	})
	interrupt()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var r reportJSON
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if r.Agents != 200 || r.Connected != 200 || r.Registered != 200 || r.Registrations != 200 || r.Beats < 1000 || len(r.Errors) != 0 {
		t.Errorf("got %+v", r)
	}
	if r.Commands != 600 || r.Answered != 600 || r.Acked != 600 || r.Chunks != 1200 || r.Failed != int64(failed) || r.Repeats != 0 {
		t.Errorf("got %+v", r)
	}
	if ack := r.Latency["ack"]; ack.Count != 600 || ack.P50 > ack.P99 || ack.P99 > ack.Max || ack.Max == 0 {
		t.Errorf("got %+v", ack)
	}
	if manyLoopbacks && len(book.hosts) != sources {
		t.Errorf("links came from %v", book.hosts)
	}
}

func TestLoadStopsByItself(t *testing.T) {
	_, book := startCoordinator(t)
	start := time.Now()
	out, _, err := run(t, "--coordinator", "tcp://"+book.Addr().String(), "--agents", "20", "--duration", "2s")
	if took := time.Since(start); err != nil || took < 2*time.Second || took > 20*time.Second {
		t.Errorf("it took %v: %v", took, err)
	}
	for _, want := range []string{"registered 20; 20 registrations", "latency", "for each agent"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Whom nobody lets in has measured nothing.
func TestLoadOfNothingIsAnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	out, _, err := run(t, "--coordinator", "tcp://"+ln.Addr().String(), "--agents", "2", "--duration", "300ms", "-o", "json")
	var r reportJSON
	if err == nil || json.Unmarshal([]byte(out), &r) != nil || r.Errors["dial"] == 0 {
		t.Errorf("%v; %s", err, out)
	}
}

func TestCoordinatorElsewhereIsRefused(t *testing.T) {
	for _, endpoint := range []string{"tcp://192.0.2.1:7600", "tcp://[2001:db8::1]:7600", "tcp://0.0.0.0:7600"} {
		if _, _, err := run(t, "--coordinator", endpoint); err == nil || !strings.Contains(err.Error(), "--anywhere") {
			t.Errorf("%s: %v", endpoint, err)
		}
		to, err := resolve(t.Context(), endpoint, true)
		if err != nil || "tcp://"+to.address != endpoint {
			t.Errorf("%s with --anywhere: %+v, %v", endpoint, to, err)
		}
	}
	for _, endpoint := range []string{"tcp://127.0.0.1:7600", "tcp://127.9.9.9:1", "tcp://[::1]:7600", "tcp://localhost:7600", "ipc:///tmp/bus"} {
		if _, err := resolve(t.Context(), endpoint, false); err != nil {
			t.Error(err)
		}
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"--agents 0", "--agents 0"},
		{"--agents 100001", "--agents 100001"},
		{"--agents many", "agents"},
		{"--duration 0s", "--duration"},
		{"--duration -1s", "--duration"},
		{"--prefix ../x", "--prefix"},
		{"--tag novalue", "--tag"},
		{"--fail 1.5", "--fail"},
		{"--fail -1%", "--fail"},
		{"--fail NaN", "--fail"},
		{"--vanish lots", "--vanish"},
		{"--vanish 101%", "--vanish"},
		{"--delay -1s", "--delay"},
		{"--beat-interval -1s", "--beat-interval"},
		{"--result-size 200000", "--result-size"},
		{"--output-size -1", "--output-size"},
		{"--spare -1", "--spare"},
		{"--log loud", "--log"},
		{"-o xml", "--output"},
		{"--coordinator 127.0.0.1:7600", "--coordinator"},
		{"--coordinator tcp://127.0.0.1", "--coordinator"},
		{"--coordinator tcp://:7600", "--coordinator"},
		{"--coordinator ipc://", "--coordinator"},
		{"--coordinator udp://127.0.0.1:1", "--coordinator"},
		{"something", "something"},
		{"--unknown", "unknown"},
	} {
		if _, _, err := run(t, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestShares(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "0": 0, "1": 1, "0.25": 0.25, "25%": 0.25, "100%": 1, "0.5%": 0.005} {
		if got, err := shareOf("fail", text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestHelpTellsOneDefaultAndTheVersion(t *testing.T) {
	var out strings.Builder
	app := newApp(&out, &out)
	for _, flag := range arguments.Unclear("muster-load", app.Flags, nil) {
		t.Errorf("two defaults: %s", flag)
	}
	if err := app.RunContext(t.Context(), []string{"muster-load", "--version"}); err != nil || out.String() != "muster-load version "+release.Version()+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
