package bus_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// foreign is a program with libzmq that runs until the test ends.
type foreign struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	stop func()
}

// python starts a script of testdata.
func python(t *testing.T, script string, args ...string) *foreign {
	t.Helper()
	if out, err := exec.Command("/usr/bin/python3", "-c", "import zmq").CombinedOutput(); err != nil {
		t.Fatalf("libzmq for Python is missing: apt-get install python3-zmq\n%v\n%s", err, out)
	}
	f := &foreign{t: t, cmd: exec.Command("/usr/bin/python3", append([]string{filepath.Join("testdata", "python", script)}, args...)...)}
	f.cmd.Stderr = t.Output()
	var err error
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.out = bufio.NewReaderSize(out, 1<<20)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.stop = sync.OnceFunc(func() {
		f.in.Close()
		f.cmd.Process.Kill()
		f.cmd.Wait()
	})
	t.Cleanup(f.stop)
	return f
}

// line reads one line that the program prints.
func (f *foreign) line() string {
	f.t.Helper()
	line, err := f.out.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// send sends m as the dealer of dealer.py.
func (f *foreign) send(m proto.Message) {
	f.t.Helper()
	body, err := proto.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	line := hex.EncodeToString([]byte(proto.MessageName(m))) + "  " + hex.EncodeToString(body) + "\n"
	if _, err := io.WriteString(f.in, line); err != nil {
		f.t.Fatal(err)
	}
}

// receive reads the next message that dealer.py gets into m.
func (f *foreign) receive(m proto.Message) {
	f.t.Helper()
	line := f.line()
	for strings.HasPrefix(line, "failed") {
		line = f.line()
	}
	var frames [][]byte
	for _, x := range strings.Split(line, " ") {
		b, err := hex.DecodeString(x)
		if err != nil {
			f.t.Fatal(err)
		}
		frames = append(frames, b)
	}
	if len(frames) != 3 || string(frames[0]) != string(proto.MessageName(m)) {
		f.t.Fatalf("got %.100q, want %T", frames, m)
	}
	if err := proto.Unmarshal(frames[2], m); err != nil {
		f.t.Fatal(err)
	}
}

// sizes are those of the data in a chunk: around what changes the form of a
// frame, a buffer or a limit.
var sizes = []int{0, 1, 100, 187, 188, 189, 200, 254, 255, 256, 1000, 1023, 1024, 1025, 4096, 16_300, 16_384, 65_000, 100_000, 1 << 20, 8<<20 - 100}

// echoStation is one on TCP that sends Commands back.
func echoStation(t *testing.T, sealed bool, authorize func(bus.Candidate) (string, error)) *station {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := buildStation(t, bus.Config{})
	if sealed {
		s.guarded(authorize)
	}
	bus.Handle(s.mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Command) error {
		return p.Reply(env, m)
	})
	s.addr, s.dial = "tcp://"+ln.Addr().String(), bus.Dial
	s.serve(ln)
	return s
}

// nullAndCurve runs a test twice.
func nullAndCurve(t *testing.T, test func(t *testing.T, sealed bool)) {
	t.Run("NULL", func(t *testing.T) { test(t, false) })
	t.Run("CURVE", func(t *testing.T) { test(t, true) })
}

// libzmqDealer starts one that knows the way to s.
func libzmqDealer(t *testing.T, s *station, secret bus.SecretKey, server bus.PublicKey) *foreign {
	if s.sec == nil {
		return python(t, "dealer.py", s.addr)
	}
	return python(t, "dealer.py", s.addr, server.String(), secret.Public().String(), secret.Z85())
}

func TestLibzmqDealerAtOurRouter(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) {
		s := echoStation(t, sealed, everybody)
		f := libzmqDealer(t, s, secretOf(t), s.server)
		f.send(&musterv1.Register{AgentId: "python"})
		f.receive(&musterv1.Registered{})
		for _, size := range sizes {
			want, got := &musterv1.Command{Input: bytes.Repeat([]byte{'x'}, size)}, &musterv1.Command{}
			f.send(want)
			if f.receive(got); !proto.Equal(got, want) {
				t.Errorf("%d bytes came back as %d", size, len(got.Input))
			}
		}
		if id := s.peers()[0].Identity(); id != "python" {
			t.Errorf("identity %q", id)
		}
		// Its heartbeats are answered: the link outlives their timeout.
		until(t, "libzmq has sent PINGs", func() bool { return s.value("muster_bus_commands_total", "PING") >= 5 })
		if len(s.ends()) != 0 || len(s.peers()) != 1 {
			t.Errorf("%d links, ended: %v", len(s.peers()), s.ends())
		}
	})
}

// We hang up; libzmq comes again, and goes on.
func TestLibzmqDealerComesBack(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) {
		s := echoStation(t, sealed, everybody)
		f := libzmqDealer(t, s, secretOf(t), s.server)
		for i := range 3 {
			until(t, "it is here", func() bool { return len(s.peers()) == i+1 })
			want, got := &musterv1.Command{Id: "again"}, &musterv1.Command{}
			f.send(want)
			if f.receive(got); got.Id != want.Id {
				t.Errorf("got %v", got)
			}
			s.peers()[i].Close(errors.New("enough"))
			until(t, "it is gone", func() bool { return len(s.ends()) == i+1 })
		}
	})
}

func TestLibzmqDealerWithWrongServerKey(t *testing.T) {
	s := echoStation(t, true, everybody)
	wrong, _ := newKeys(t)
	f := libzmqDealer(t, s, secretOf(t), wrong)
	if line := f.line(); !strings.HasPrefix(line, "failed") {
		t.Errorf("libzmq says %q", line)
	}
	until(t, "we count it", func() bool { return s.refused("server_key") >= 2 })
	if len(s.peers()) != 0 {
		t.Error("it is in")
	}
	s.enter().served()
}

// C028 with libzmq: it gets in once its key is approved, for we said no ERROR.
func TestLibzmqDealerIsApprovedLater(t *testing.T) {
	var door door
	s := echoStation(t, true, door.authorize)
	public, secret := newKeys(t)
	f := libzmqDealer(t, s, secret, s.server)
	if line := f.line(); !strings.HasPrefix(line, "failed") {
		t.Errorf("libzmq says %q", line)
	}
	until(t, "it tries again", func() bool { return s.refused("unauthorized") >= 2 })
	door.set(public, "web-1")
	until(t, "it is in", func() bool { return len(s.peers()) == 1 })
	f.send(&musterv1.Register{AgentId: "python"})
	f.receive(&musterv1.Registered{})
	if p := s.peers()[0]; p.Identity() != "web-1" || p.Key() != public.String() {
		t.Errorf("it is %q with %q", p.Identity(), p.Key())
	}
}

// client is our dealer at a libzmq router.
type client struct {
	*station
	lines lineCounter
	ups   chan *bus.Peer
	got   chan *musterv1.Command
}

func newClient(t *testing.T, port string, sec bus.Security) *client {
	c := &client{station: &station{t: t, reg: prometheus.NewRegistry()}, ups: make(chan *bus.Peer, 10), got: make(chan *musterv1.Command, 1)}
	mux := bus.NewMux()
	mux.Up = func(p *bus.Peer) { c.ups <- p }
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Command) error {
		c.got <- m
		return nil
	})
	d := bus.NewDealer(bus.Config{Log: c.lines.logger(), Metrics: c.reg, Identity: "ours"}, mux, []string{"tcp://127.0.0.1:" + port}, sec, nil)
	run(t, d.Run)
	return c
}

// link waits for the next link.
func (c *client) link() *bus.Peer {
	c.t.Helper()
	select {
	case p := <-c.ups:
		p.Promote()
		return p
	case <-time.After(30 * time.Second):
		c.t.Fatalf("no link: %v", c.lines.lines)
		return nil
	}
}

// echo sends a Command and wants it back.
func (c *client) echo(p *bus.Peer, size int) {
	c.t.Helper()
	want := &musterv1.Command{Input: bytes.Repeat([]byte{'x'}, size)}
	if err := p.Send(want); err != nil {
		c.t.Fatal(err)
	}
	select {
	case m := <-c.got:
		if !proto.Equal(m, want) {
			c.t.Errorf("%d bytes came back as %d", size, len(m.Input))
		}
	case <-time.After(10 * time.Second):
		c.t.Fatalf("%d bytes did not come back", size)
	}
}

// libzmqRouter gives the arguments of router.py, and our security for it.
func libzmqRouter(t *testing.T, sealed bool) (args []string, sec bus.Security) {
	if !sealed {
		return nil, bus.Null()
	}
	public, secret := newKeys(t)
	return []string{secret.Z85()}, bus.CurveClient(secretOf(t), public)
}

func TestOurDealerAtLibzmqRouter(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) {
		args, sec := libzmqRouter(t, sealed)
		f := python(t, "router.py", append([]string{"0"}, args...)...)
		c := newClient(t, f.line(), sec)
		p := c.link()
		for _, size := range sizes {
			c.echo(p, size)
		}
		until(t, "libzmq has sent PINGs", func() bool { return c.value("muster_bus_commands_total", "PING") >= 5 })
		select {
		case <-p.Done():
			t.Error("the link ended")
		default:
		}
	})
}

// The libzmq router is killed and started again; our dealer comes back.
func TestOurDealerComesBackToLibzmq(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) {
		args, sec := libzmqRouter(t, sealed)
		f := python(t, "router.py", append([]string{"0"}, args...)...)
		port := f.line()
		c := newClient(t, port, sec)
		c.echo(c.link(), 10)
		for range 2 {
			f.stop()
			f = python(t, "router.py", append([]string{port}, args...)...)
			f.line()
			c.echo(c.link(), 300)
		}
	})
}

func TestOurDealerAtLibzmqWithWrongServerKey(t *testing.T) {
	args, _ := libzmqRouter(t, true)
	f := python(t, "router.py", append([]string{"0"}, args...)...)
	wrong, _ := newKeys(t)
	c := newClient(t, f.line(), bus.CurveClient(secretOf(t), wrong))
	until(t, "it tried twice", func() bool { return c.refused("handshake_closed") >= 2 })
	if !strings.Contains(c.lines.last(), "perhaps the server has another key than "+wrong.String()) || len(c.ups) != 0 {
		t.Errorf("it says %s", c.lines.last())
	}
}

// libzmq says ERROR to a key that it denies: we come again nevertheless.
func TestOurDealerDeniedByLibzmq(t *testing.T) {
	public, secret := newKeys(t)
	allowed, allowedSecret := newKeys(t)
	f := python(t, "router.py", "0", secret.Z85(), allowed.String())
	port := f.line()
	c := newClient(t, port, bus.CurveClient(secretOf(t), public))
	until(t, "it tried twice", func() bool { return c.refused("handshake_error")+c.refused("handshake_closed") >= 2 })
	if !strings.Contains(c.lines.last(), "perhaps our key is not approved there") || len(c.ups) != 0 {
		t.Errorf("it says %s", c.lines.last())
	}
	good := newClient(t, port, bus.CurveClient(allowedSecret, public))
	good.echo(good.link(), 1000)
}

// stay keeps a link with libzmq for a while, heartbeats on.
func stay(t *testing.T, sealed bool, d time.Duration) {
	s := echoStation(t, sealed, everybody)
	f := libzmqDealer(t, s, secretOf(t), s.server)
	args, sec := libzmqRouter(t, sealed)
	g := python(t, "router.py", append([]string{"0"}, args...)...)
	c := newClient(t, g.line(), sec)
	p := c.link()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for tick := time.NewTicker(d / 6); ctx.Err() == nil; {
		f.send(&musterv1.Command{Id: "still here"})
		f.receive(&musterv1.Command{})
		c.echo(p, 100)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	least := float64(d/(100*time.Millisecond)) / 2
	if n := s.value("muster_bus_commands_total", "PING"); n < least || len(s.peers()) != 1 || len(s.ends()) != 0 {
		t.Errorf("at our router: %v PINGs, want %v; links %d, ended %v", n, least, len(s.peers()), s.ends())
	}
	if n := c.value("muster_bus_commands_total", "PING"); n < least || len(c.ups) != 0 {
		t.Errorf("at our dealer: %v PINGs, want %v; %d links more", n, least, len(c.ups))
	}
}

// Longer than the timeouts of libzmq's heartbeats, which are 2 s.
func TestLibzmqHeartbeats(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) { t.Parallel(); stay(t, sealed, 3*time.Second) })
}
