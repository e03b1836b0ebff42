package load_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus/curve"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
	"github.com/musterhq/muster/scripts/benchmark/load"
	"github.com/musterhq/muster/scripts/benchmark/server"
)

// start runs a server until the test ends, and gives its address and key.
func start(t *testing.T, kind string) (addr netip.AddrPort, key string) {
	t.Helper()
	orders, order := io.Pipe()
	out, say := io.Pipe()
	var done sync.WaitGroup
	done.Go(func() {
		defer say.Close()
		if err := server.Serve(t.Context(), kind, orders, say); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { order.Close(); done.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	words := append(strings.Fields(line), "")
	return netip.MustParseAddrPort(words[1]), words[2]
}

func TestFleetMakesRoundTrips(t *testing.T) {
	body, err := proto.Marshal(&musterv1.OutputChunk{Data: make([]byte, 98)})
	if err != nil {
		t.Fatal(err)
	}
	message := load.Message{[]byte("muster.v1.OutputChunk"), nil, body}
	for _, kind := range server.Kinds() {
		t.Run(kind, func(t *testing.T) {
			addr, key := start(t, kind)
			security := load.Security{Raw: kind == "echo"}
			if key != "" {
				security.Client = newClient(t, key)
			}
			f, err := load.Connect(t.Context(), load.Config{Addr: addr, Peers: 10, Security: security, Message: message, Timing: true})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, window := range []int{1, 3, 1} {
				if err := runUntil(t, f, window, f.Answers()+500); err != nil {
					t.Errorf("window %d: %v", window, err)
				}
			}
			if f.Quantile(0.5) <= 0 || f.Quantile(0.99) < f.Quantile(0.5) {
				t.Errorf("half come back within %v, 99 %% within %v", f.Quantile(0.5), f.Quantile(0.99))
			}
		})
	}
}

func newClient(t *testing.T, key string) *curve.Client {
	public, err := curve.ParsePublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := curve.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	return curve.NewClient(secret, public)
}

// runUntil loads the server until so many answers came in all.
func runUntil(t *testing.T, f *load.Fleet, window int, answers int64) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- f.Run(ctx, window) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for f.Answers() < answers {
		select {
		case err := <-ran:
			return fmt.Errorf("it ended after %d answers: %w", f.Answers(), err)
		case <-tick.C:
		}
	}
	cancel()
	return <-ran
}

func TestFleetSaysWhyItCannotConnect(t *testing.T) {
	addr, _ := start(t, "muster")
	_, secret, err := curve.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	client := curve.NewClient(secret, secret.Public())
	_, err = load.Connect(t.Context(), load.Config{Addr: addr, Peers: 3, Security: load.Security{Client: client}, Message: load.Message{nil}})
	if err == nil {
		t.Error("CURVE peers connected to a NULL server")
	}
}
