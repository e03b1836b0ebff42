package bus_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// python runs a script with libzmq until the test ends.
func python(t *testing.T, script string, args ...string) (io.Writer, *bufio.Reader) {
	t.Helper()
	if out, err := exec.Command("/usr/bin/python3", "-c", "import zmq").CombinedOutput(); err != nil {
		t.Fatalf("libzmq for Python is missing: apt-get install python3-zmq\n%v\n%s", err, out)
	}
	cmd := exec.Command("/usr/bin/python3", append([]string{filepath.Join("testdata", "python", script)}, args...)...)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return in, bufio.NewReaderSize(out, 1<<20)
}

// sizes are those of the data in a chunk: around what changes the form of a
// frame, a buffer or a limit.
var sizes = []int{0, 1, 100, 200, 254, 255, 256, 1000, 1023, 1024, 1025, 4096, 65_000, 100_000, 1 << 20, 8<<20 - 100}

func TestLibzmqDealerAtOurRouter(t *testing.T) {
	s := buildStation(t, bus.Config{})
	bus.Handle(s.mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Command) error {
		return p.Reply(env, m)
	})
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serve(ln)
	in, out := python(t, "dealer.py", "tcp://"+ln.Addr().String())
	ask := func(m proto.Message) [][]byte {
		t.Helper()
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		line := hex.EncodeToString([]byte(proto.MessageName(m))) + "  " + hex.EncodeToString(body) + "\n"
		if _, err := io.WriteString(in, line); err != nil {
			t.Fatal(err)
		}
		answer, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var frames [][]byte
		for _, x := range strings.Split(strings.TrimSuffix(answer, "\n"), " ") {
			b, err := hex.DecodeString(x)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, b)
		}
		return frames
	}
	if f := ask(&musterv1.Register{AgentId: "python"}); len(f) != 3 || string(f[0]) != "muster.v1.Registered" {
		t.Fatalf("answer %q", f)
	}
	for _, size := range sizes {
		want := &musterv1.Command{Input: bytes.Repeat([]byte{'x'}, size)}
		f := ask(want)
		got := &musterv1.Command{}
		if err := proto.Unmarshal(f[2], got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%d bytes came back as %d, %v", size, len(got.Input), err)
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
}

func TestOurDealerAtLibzmqRouter(t *testing.T) {
	_, out := python(t, "router.py")
	port, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s := &station{t: t, reg: prometheus.NewRegistry()}
	mux := bus.NewMux()
	ups := make(chan *bus.Peer, 1)
	mux.Up = func(p *bus.Peer) { ups <- p }
	mux.Down = func(_ *bus.Peer, err error) { s.down = append(s.down, err) }
	got := make(chan *musterv1.Command, 1)
	bus.Handle(mux, func(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.Command) error {
		got <- m
		return nil
	})
	d := bus.NewDealer(bus.Config{Log: testLog(t), Metrics: s.reg, Identity: "ours"}, mux,
		[]string{"tcp://127.0.0.1:" + strings.TrimSpace(port)}, bus.Null(), nil)
	run(t, d.Run)
	p := <-ups
	p.Promote()
	for _, size := range sizes {
		want := &musterv1.Command{Input: bytes.Repeat([]byte{'x'}, size)}
		if err := p.Send(want); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-got:
			if !proto.Equal(m, want) {
				t.Errorf("%d bytes came back as %d", size, len(m.Input))
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d bytes did not come back", size)
		}
	}
	until(t, "libzmq has sent PINGs", func() bool { return s.value("muster_bus_commands_total", "PING") >= 5 })
	select {
	case <-p.Done():
		t.Error("the link ended")
	default:
	}
}
