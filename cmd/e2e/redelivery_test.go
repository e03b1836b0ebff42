package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rawCoordinator is a ROUTER by hand that forgets everything, and never
// acknowledges a result.
type rawCoordinator struct {
	t  *testing.T
	ln net.Listener
}

func startRawCoordinator(t *testing.T) *rawCoordinator {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return &rawCoordinator{t, ln}
}

// welcome lets the next agent in and returns its link.
func (c *rawCoordinator) welcome() rawPeer {
	c.t.Helper()
	if err := c.ln.(*net.TCPListener).SetDeadline(time.Now().Add(maxBackOff)); err != nil {
		c.t.Fatal(err)
	}
	conn, err := c.ln.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	p := rawPeer{conn}
	if err := p.handshakeAs("ROUTER"); err != nil {
		c.t.Fatal(err)
	}
	p.want(c.t, "muster.v1.Register")
	if err := p.send(&musterv1.Registered{SessionId: nonce(), Capabilities: 0xf, HeartbeatInterval: durationpb.New(10 * time.Second)}); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// result sends a command and returns what the agent finally says of it.
func (p rawPeer) result(t *testing.T, cmd *musterv1.Command) *musterv1.Target {
	t.Helper()
	if err := p.send(cmd); err != nil {
		t.Fatal(err)
	}
	for {
		got := &musterv1.Target{}
		if err := proto.Unmarshal(p.want(t, "muster.v1.Target"), got); err != nil {
			t.Fatal(err)
		}
		if got.CommandId == cmd.Id && got.State >= musterv1.Target_SUCCEEDED {
			return got
		}
	}
}

// A coordinator that never acknowledges, breaks links and forgets sends the same
// command again and again, also to an agent that was killed in between: the
// program ran once, and each time the answer is the one that it was.
func TestC034DuplicateDelivery(t *testing.T) {
	t.Parallel()
	c := startRawCoordinator(t)
	record, dir := filepath.Join(t.TempDir(), "record"), t.TempDir()
	agent := func() *process {
		return startProcess(t, "a1", exec.Command(filepath.Join(bin, "muster-agentd"), "--coordinator", "tcp://"+c.ln.Addr().String(),
			"--data", dir, "--id", "a1", "--allow", "exec"))
	}
	cmd := func(n int) *musterv1.Command {
		return &musterv1.Command{
			Id: fmt.Sprintf("01M8NJGX3B1NSN9645PNR8%04d", n), Type: "exec", Input: fmt.Appendf(nil, `{"argv":["sh","-c","echo line-%d >>%s; echo $$; exit 3"]}`, n, record),
			Timeout: durationpb.New(time.Minute), ExpiresIn: durationpb.New(time.Hour),
		}
	}
	a := agent()
	p := c.welcome()
	first := p.result(t, cmd(0))
	if first.State != musterv1.Target_FAILED || first.GetExitCode() != 3 {
		t.Fatalf("got %v", first)
	}
	for round := range 6 {
		p.Close()
		if round%2 == 1 {
			a.kill()
			a = agent()
		}
		p = c.welcome()
		if again := p.result(t, cmd(0)); !again.EndTime.AsTime().Equal(first.EndTime.AsTime()) || again.State != first.State || again.Stdout.GetSha256() != first.Stdout.GetSha256() {
			t.Errorf("round %d: %v, was %v", round, again, first)
		}
		for n := range 20 { // others in between do not make it forget
			p.result(t, cmd(1+20*round+n))
		}
	}
	times := ran(t, record)
	for line, n := range times {
		if n != 1 {
			t.Errorf("%s ran %d times", line, n)
		}
	}
	if want := 1 + 6*20; len(times) != want {
		t.Errorf("%d programs ran, want %d", len(times), want)
	}
}
