package commands

import (
	"context"
	"fmt"
)

// In the data folder of a coordinator.
const (
	tokenFile = "admin.token"
	keyFile   = "curve.key"
	storeFile = "muster.db"
)

// parts are the programs that this one is besides the benchmark.
var parts = map[string]func(ctx context.Context, args []string) error{
	"agents":      runAgents,
	"coordinator": runVariant,
	"nats":        runNATS,
	"subscribers": runSubscribers,
}

// Part runs one of the processes of the benchmark.
func Part(ctx context.Context, args []string) error {
	if len(args) == 0 || parts[args[0]] == nil {
		return fmt.Errorf("part %q: there is none", args)
	}
	return parts[args[0]](ctx, args[1:])
}
