package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMoreAgentsThanSocketsAreRefused(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	most := int(min(limit.Max, 1<<40)) - otherFiles
	if err := checkSockets(most); err != nil {
		t.Error(err)
	}
	if err := checkSockets(most + 1); err == nil || !strings.Contains(err.Error(), "--prefix") {
		t.Errorf("got %v", err)
	}
}
