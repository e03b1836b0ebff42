package boltstore_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Some tests need a process that may die: the test binary starts itself.

const childVar = "BOLTSTORE_TEST_CHILD"

// children are what such a process can do with a store file; it exits with what
// they return.
var children = map[string]func(path string) int{
	"commit": commitUntilKilled,
	"use":    useOnce,
	"fill":   fillTheDisk,
	"hold":   holdTheLock,
	"verify": verifyWithBbolt,
}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childVar)]; child != nil {
		os.Exit(child(os.Args[1]))
	}
	os.Exit(m.Run())
}

func child(ctx context.Context, name, path string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), childVar+"="+name, "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	cmd.WaitDelay = time.Second
	return cmd
}

// runChild runs a child to its end and checks that it was not a crash.
func runChild(t *testing.T, name, path string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := child(ctx, name, path)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || !cmd.ProcessState.Exited() || ctx.Err() != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
	for _, sign := range []string{"panic", "fatal error", "SIGBUS", "SIGSEGV", "goroutine ", "DATA RACE"} {
		if bytes.Contains(out, []byte(sign)) {
			t.Fatalf("child %s crashed:\n%s", name, out)
		}
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
