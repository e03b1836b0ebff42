package server_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/musterhq/muster/scripts/benchmark/server"
)

// TestMain is the server when Start runs the test's program again.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		if err := server.Serve(context.Background(), os.Args[2], os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestServersTakeOrders(t *testing.T) {
	for _, kind := range server.Kinds() {
		p, err := server.Start(t.Context(), os.Args[0], "serve", kind)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Order("settle"); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := p.Order("dance"); err == nil || !strings.Contains(err.Error(), "cannot do") {
			t.Errorf("%s: order %q: %v", kind, "dance", err)
		}
		if bytes, err := p.Memory(); err != nil || bytes < 1<<20 {
			t.Errorf("%s: %d bytes of memory, %v", kind, bytes, err)
		}
		if spent, err := p.CPU(); err != nil || spent <= 0 {
			t.Errorf("%s: %v of CPU time, %v", kind, spent, err)
		}
		if err := p.Stop(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestServerThatCannotStartIsAnError(t *testing.T) {
	if _, err := server.Start(t.Context(), os.Args[0], "serve", "teapot"); err == nil {
		t.Error("no error")
	}
}
