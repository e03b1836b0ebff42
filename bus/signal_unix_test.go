//go:build unix

package bus_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// The router of a test that needs a process to stop.
const routerProcess = "BUS_TEST_ROUTER"

func TestMain(m *testing.M) {
	if os.Getenv(routerProcess) != "" {
		serveForever()
	}
	os.Exit(m.Run())
}

// serveForever prints its endpoint and answers heartbeats.
func serveForever() {
	ln, err := bus.Listen("tcp://127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	mux := bus.NewMux()
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Heartbeat) error {
		return p.Reply(env, &musterv1.HeartbeatAck{SequenceNum: m.SequenceNum})
	})
	fmt.Println("tcp://" + ln.Addr().String())
	bus.NewRouter(bus.Config{Handshake: 500 * time.Millisecond, WriteStall: time.Second}, mux).Serve(context.Background(), ln, bus.Null())
}

// The real thing: a process is stopped, bytes arrive, all deadlines pass, and it
// goes on.
func TestC004StoppedAndContinued(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), routerProcess+"=1")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	endpoint, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s := &station{t: t, addr: strings.TrimSpace(endpoint), dial: bus.Dial}
	old := s.enter()
	silent := s.knock(nil) // it was accepted before the stop
	s.enter().served()
	cmd.Process.Signal(syscall.SIGSTOP)
	whole := s.knock(stream(t, "good-null-dealer"))
	half := s.knock(stream(t, "good-null-dealer")[:80])
	old.send(sealed(t, &musterv1.Heartbeat{SequenceNum: 7}))
	silent.send(stream(t, "good-null-dealer"))
	<-time.After(1200 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGCONT)
	for _, r := range []*raw{whole, silent} {
		r.SetReadDeadline(time.Now().Add(5 * time.Second))
		r.welcome()
		r.served()
	}
	var ack musterv1.HeartbeatAck
	if old.receive(&ack); ack.SequenceNum != 7 {
		t.Errorf("acknowledged %d, want 7", ack.SequenceNum)
	}
	half.closed(5 * time.Second)
	s.enter().served()
}
