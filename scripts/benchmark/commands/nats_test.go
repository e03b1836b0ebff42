package commands

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

func TestSubscribersAnswer(t *testing.T) {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not become ready")
	}
	const n = 20
	subs := &subscribers{result: []byte(" 2\r\nok\r\n")}
	defer subs.running.Wait() // they end when their connections are closed
	for i := range n {
		nc, err := dialFrom(t.Context(), i, s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		subs.running.Go(func() { subs.serve(nc) })
	}
	if err := poll(t.Context(), 10*time.Second, func() (bool, error) { return subs.ready.Load() == n, nil }); err != nil {
		t.Fatal(err)
	}
	r, err := newRequester(s.Addr().String(), n)
	if err != nil {
		t.Fatal(err)
	}
	defer r.nc.Close()
	for range 3 {
		if err := r.ask(t.Context(), []byte("what")); err != nil {
			t.Fatal(err)
		}
	}
	r.want = n + 1
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.ask(ctx, nil); err == nil {
		t.Error("no error when a reply is missing")
	}
}

func TestLinesLongerThanTheBuffer(t *testing.T) {
	long := strings.Repeat("x", 100)
	in := bufio.NewReaderSize(strings.NewReader("a\r\n"+long+"\r\nb\r\nend"), 16)
	for _, want := range []string{"a", long, "b"} {
		if got, err := readLine(in); got != want || err != nil {
			t.Errorf("line is %q, %v; want %q", got, err, want)
		}
	}
	if got, err := readLine(in); err == nil {
		t.Errorf("half a line is %q", got)
	}
}
