package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/bus"
)

// Only loopback and ipc are served in the clear, unless it is asked for.
func TestListenersAreSecureByDefault(t *testing.T) {
	ipc := "ipc://" + filepath.Join(t.TempDir(), "agents")
	for _, tc := range []struct {
		south southbound
		curve []bool
	}{
		{southbound{endpoints: []string{"tcp://127.0.0.1:0", "tcp://[::1]:0", ipc}}, []bool{false, false, false}},
		{southbound{endpoints: []string{"tcp://0.0.0.0:0", "tcp://127.0.0.1:0"}}, []bool{true, false}},
		{southbound{endpoints: []string{"tcp://127.0.0.1:0", ipc}, curve: true}, []bool{true, true}},
		{southbound{endpoints: []string{"tcp://0.0.0.0:0"}, insecure: true}, []bool{false}},
	} {
		gates, err := tc.south.open()
		if err != nil {
			t.Fatalf("%+v: %v", tc.south, err)
		}
		for i, g := range gates {
			if g.curve != tc.curve[i] {
				t.Errorf("%+v: %s: CURVE %v", tc.south, tc.south.endpoints[i], g.curve)
			}
			if strings.Contains(g.endpoint(), "0.0.0.0") {
				t.Errorf("%s is nowhere to go to", g.endpoint())
			}
			g.Close()
		}
	}
	if _, err := (southbound{endpoints: []string{"tcp://127.0.0.1:0"}, curve: true, insecure: true}).open(); err == nil {
		t.Error("--curve and --insecure-southbound together")
	}
}

// When one listener cannot be had, the others are let go.
func TestListenersAreAllOrNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agents")
	if _, err := (southbound{endpoints: []string{"ipc://" + path, "nonsense"}}).open(); err == nil {
		t.Fatal("nonsense is no endpoint")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the first listener is left")
	}
}

// The line that starts an agent is for a shell: a key has characters that mean
// something to one.
func TestJoinLineIsQuoted(t *testing.T) {
	public, _, err := bus.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	want := "muster-agentd --coordinator tcp://10.0.0.1:7600 --server-key '" + public.String() + "' --data DIR"
	if got := joinLine("tcp://10.0.0.1:7600", public); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
